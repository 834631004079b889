// SPDX-License-Identifier: Apache-2.0
#include "call.h"
#include "fake.h"
#include "memory.h"
#include "streams.h"

namespace {

struct AllocParams {
  CUdeviceptr* address;
  size_t size;
  unsigned flags;
};

CUresult give(Kind kind, uint64_t size, CUdeviceptr* to) {
  uint64_t base = 0;
  CUresult result = allocate(kind, size, &base);
  if (!result) *to = base;
  return result;
}

}  // namespace

extern "C" {

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return call("cuMemGetInfo_v2", 242, 0, [&] {
    Values& v = values();
    uint64_t used = v.other_bytes + v.device_bytes + v.frame_bytes + v.resident_bytes;
    *total = v.memory_bytes;
    *free = used < v.memory_bytes ? v.memory_bytes - used : 0;
    return kSuccess;
  });
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size) {
  AllocParams params{address, size, 0};
  return call("cuMemAlloc_v2", 243, kWaits, &params, nullptr, [&] { return give(Kind::device, size, address); });
}

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t size, unsigned flags) {
  AllocParams params{address, size, flags};
  return call("cuMemAllocManaged", 371, kWaits, &params, nullptr,
              [&] { return flags != 1 && flags != 2 ? kInvalidValue : give(Kind::managed, size, address); });
}

// Waits for the device first, as the driver does.
CUresult cuMemFree_v2(CUdeviceptr address) {
  return call("cuMemFree_v2", 245, kWaits, &address, nullptr, [&] {
    if (!address) return kSuccess;
    if (CUresult lost = wait_for_device()) return lost;
    return release(Kind::device, address);
  });
}

CUresult cuMemHostAlloc(void** address, size_t size, unsigned) {
  return call("cuMemHostAlloc", 39, kWaits, [&] { return give(Kind::pinned, size, reinterpret_cast<CUdeviceptr*>(address)); });
}

CUresult cuMemAllocHost_v2(void** address, size_t size) {
  return call("cuMemAllocHost_v2", 294, kWaits,
              [&] { return give(Kind::pinned, size, reinterpret_cast<CUdeviceptr*>(address)); });
}

CUresult cuMemFreeHost(void* address) {
  return call("cuMemFreeHost", 38, kWaits, [&] {
    if (CUresult lost = wait_for_device()) return lost;
    return release(Kind::pinned, reinterpret_cast<uint64_t>(address));
  });
}

CUresult cuMemHostRegister_v2(void* address, size_t size, unsigned) {
  return call("cuMemHostRegister_v2", 0, kWaits, [&] { return register_host(reinterpret_cast<uint64_t>(address), size); });
}

CUresult cuMemHostUnregister(void* address) {
  return call("cuMemHostUnregister", 0, kWaits, [&] {
    return release(Kind::registered, reinterpret_cast<uint64_t>(address)) ? kHostNotRegistered : kSuccess;
  });
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host, unsigned) {
  return call("cuMemHostGetDevicePointer_v2", 247, 0, [&] {
    Allocation found;
    if (!find_allocation(reinterpret_cast<uint64_t>(host), &found)) return kInvalidValue;
    *device = reinterpret_cast<uint64_t>(host);
    return kSuccess;
  });
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  return call("cuMemGetAddressRange_v2", 0, 0, [&] {
    Allocation found;
    if (!find_allocation(address, &found)) return kNotFound;
    if (base) *base = found.base;
    if (size) *size = found.size;
    return kSuccess;
  });
}

}  // extern "C"

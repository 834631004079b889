// SPDX-License-Identifier: Apache-2.0
#include "call.h"
#include "context.h"
#include "frames.h"
#include "memory.h"

namespace {

enum { kContext = 1, kMemoryType, kDevicePointer, kHostPointer, kSyncMemops = 6, kBufferId, kIsManaged, kOrdinal,
       kStart = 11, kSize, kMapped };

template <class T>
CUresult put(void* data, T value) {
  *static_cast<T*>(data) = value;
  return kSuccess;
}

// Of memory that the driver knows; or of any other, for the call that asks for several.
CUresult attribute(void* data, int which, uint64_t address, bool known, const Allocation& a) {
  bool on_host = a.kind == Kind::pinned || a.kind == Kind::registered || (a.mapping && a.mapping->frame->on_host);
  switch (which) {
    case kContext: return put<CUcontext>(data, known ? current_context() : nullptr);
    case kMemoryType: return put<unsigned>(data, !known ? 0 : on_host ? 1 : 2);  // managed memory counts as the device's
    case kDevicePointer: return put<uint64_t>(data, known ? address : 0);
    case kHostPointer: return put<uint64_t>(data, known && a.kind != Kind::device && (a.kind != Kind::mapped || on_host) ? address : 0);
    case kSyncMemops: return put<bool>(data, false);
    case kBufferId: return put<uint64_t>(data, known ? a.id : 0);
    case kIsManaged: return put<bool>(data, known && a.kind == Kind::managed);
    case kOrdinal: return put<int>(data, known ? 0 : -2);
    case kStart: return put<uint64_t>(data, known ? a.base : 0);
    case kSize: return put<size_t>(data, known ? a.size : 0);
    case kMapped: return put<bool>(data, known);
    default: return kNotSupported;
  }
}

}  // namespace

extern "C" {

CUresult cuPointerGetAttribute(void* data, int which, CUdeviceptr address) {
  return call("cuPointerGetAttribute", 310, 0, [&] {
    Allocation found{};
    return find_allocation(address, &found) ? attribute(data, which, address, true, found) : kInvalidValue;
  });
}

CUresult cuPointerGetAttributes(unsigned count, int* which, void** data, CUdeviceptr address) {
  return call("cuPointerGetAttributes", 450, 0, [&] {
    Allocation found{};
    bool known = find_allocation(address, &found);
    for (unsigned i = 0; i < count; i++)
      if (CUresult error = attribute(data[i], which[i], address, known, found)) return error;
    return kSuccess;
  });
}

}  // extern "C"

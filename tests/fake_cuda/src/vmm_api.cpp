// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management. None of these calls waits for the device, and none needs a current context.
#include "call.h"
#include "frames.h"

namespace {

struct Properties {
  int type, handle_types;
  CUmemLocation location;
  void* win32;
  unsigned char flags[8];
};
static_assert(sizeof(Properties) == 32, "as the driver lays it out");

struct Access {
  CUmemLocation location;
  int flags;
};
static_assert(sizeof(Access) == 12, "as the driver lays it out");

enum { kPinnedType = 1 };

bool on_host(const CUmemLocation& place) { return place.type >= kLocationHost && place.type <= kLocationHostNumaCurrent; }
bool on_device(const CUmemLocation& place) { return place.type == kLocationDevice && place.id == 0; }

CUresult check(const Properties* wanted) {
  if (!values().vmm) return kNotSupported;
  if (!wanted || wanted->type != kPinnedType || wanted->handle_types) return kInvalidValue;
  if (on_host(wanted->location)) return values().host_vmm && wanted->location.id == 0 ? kSuccess : kNotSupported;
  return on_device(wanted->location) ? kSuccess : kInvalidDevice;
}

struct ReserveParams {
  CUdeviceptr* address;
  size_t size, align;
  CUdeviceptr wanted;
  unsigned long long flags;
};
struct RangeParams {
  CUdeviceptr address;
  size_t size;
};
struct CreateParams {
  uint64_t* handle;
  size_t size;
  const Properties* wanted;
  unsigned long long flags;
};
struct MapParams {
  CUdeviceptr address;
  size_t size, offset;
  uint64_t handle;
  unsigned long long flags;
};
struct AccessParams {
  CUdeviceptr address;
  size_t size;
  const Access* wanted;
  size_t count;
};

// Places that are not the device change nothing here: host memory is always within the host's reach.
CUresult set_all(uint64_t address, size_t size, const Access* wanted, size_t count) {
  if (!wanted || !count) return kInvalidValue;
  for (size_t i = 0; i < count; i++) {
    if (on_host(wanted[i].location)) continue;
    if (!on_device(wanted[i].location)) return kInvalidDevice;
    if (CUresult error = set_access(address, size, wanted[i].flags)) return error;
  }
  return kSuccess;
}

}  // namespace

extern "C" {

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t align, CUdeviceptr wanted, unsigned long long flags) {
  ReserveParams params{address, size, align, wanted, flags};
  return call("cuMemAddressReserve", 547, kNoContext, &params, nullptr, [&] {
    if (!values().vmm) return kNotSupported;
    uint64_t base = 0;
    CUresult result = flags ? kInvalidValue : reserve(size, align, &base);
    if (!result) *address = base;
    return result;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  RangeParams params{address, size};
  return call("cuMemAddressFree", 548, kNoContext, &params, nullptr, [&] { return unreserve(address, size); });
}

CUresult cuMemCreate(uint64_t* handle, size_t size, const Properties* wanted, unsigned long long flags) {
  CreateParams params{handle, size, wanted, flags};
  return call("cuMemCreate", 549, kNoContext, &params, nullptr, [&] {
    if (CUresult error = check(wanted)) return error;
    return flags ? kInvalidValue : create_frame(size, on_host(wanted->location), handle);
  });
}

CUresult cuMemRelease(uint64_t handle) {
  return call("cuMemRelease", 550, kNoContext, &handle, nullptr, [&] { return release_frame(handle); });
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, uint64_t handle, unsigned long long flags) {
  MapParams params{address, size, offset, handle, flags};
  return call("cuMemMap", 551, kNoContext, &params, nullptr,
              [&] { return flags ? kInvalidValue : map_frame(address, size, offset, handle); });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  RangeParams params{address, size};
  return call("cuMemUnmap", 552, kNoContext, &params, nullptr, [&] { return unmap_frames(address, size); });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const Access* wanted, size_t count) {
  AccessParams params{address, size, wanted, count};
  return call("cuMemSetAccess", 553, kNoContext, &params, nullptr, [&] { return set_all(address, size, wanted, count); });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* place, CUdeviceptr address) {
  return call("cuMemGetAccess", 558, kNoContext, [&] {
    int access = access_of(address);
    if (access < 0 || !on_device(*place)) return kInvalidValue;
    *flags = unsigned(access);
    return kSuccess;
  });
}

CUresult cuMemGetAllocationGranularity(size_t* size, const Properties* wanted, int) {
  return call("cuMemGetAllocationGranularity", 556, kNoContext, [&] {
    if (CUresult error = check(wanted)) return error;
    *size = kGranularity;
    return kSuccess;
  });
}

}  // extern "C"

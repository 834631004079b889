// SPDX-License-Identifier: Apache-2.0
#include "context.h"

#include <cstdio>
#include <cstring>
#include <mutex>
#include <vector>

#include "call.h"
#include "streams.h"

// The primary context is one object for the life of the process; `retained` says whether it exists.
struct Context {
  std::mutex lock;
  int retained = 0;
  unsigned flags = 0;
};

namespace {

Context& primary() {
  static Context* context = new Context;
  return *context;
}

thread_local std::vector<CUcontext> current;

bool bad_device(CUdevice device) { return device < 0 || uint64_t(device) >= values().devices; }

int attribute(int number) {
  Values& v = values();
  switch (number) {
    case 16: return 132;                                   // multiprocessors
    case 19: case 40: case 41: case 78: case 83: return 1;  // host mapping, copy engine, unified addressing, priorities, managed
    case 33: return 1;                                     // PCI bus
    case 75: return 9;                                     // compute capability
    case 76: return 0;
    case 89: return int(v.concurrent_managed);
    case 102: return int(v.vmm);
    case 134: return 0;  // the host node nearest to the device
    case 141: return int(v.vmm && v.host_vmm);
    case 92: case 93: case 94: case 122: case 123: return 1;  // stream memory operations
    default: return 0;
  }
}

}  // namespace

CUcontext current_context() { return current.empty() ? nullptr : current.back(); }

CUresult context_error() {
  if (!current_context()) return kInvalidContext;
  std::lock_guard<std::mutex> hold(primary().lock);
  return primary().retained ? kSuccess : kContextDestroyed;
}

extern "C" {

CUresult cuInit(unsigned flags) {
  return call("cuInit", 1, kAnyTime, [&] {
    if (flags) return kInvalidValue;
    if (!values().devices) return kNoDevice;
    mark_initialized();
    return kSuccess;
  });
}

CUresult cuDriverGetVersion(int* version) {
  return call("cuDriverGetVersion", 2, kAnyTime, [&] {
    *version = int(values().driver_version);
    return kSuccess;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return call("cuDeviceGet", 3, kNoContext, [&] {
    if (bad_device(ordinal)) return kInvalidDevice;
    *device = ordinal;
    return kSuccess;
  });
}

CUresult cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", 4, kNoContext, [&] {
    *count = int(values().devices);
    return kSuccess;
  });
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  return call("cuDeviceGetName", 5, kNoContext, [&] {
    if (bad_device(device)) return kInvalidDevice;
    snprintf(name, size_t(length), "Fake GPU for tests");
    return kSuccess;
  });
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  return call("cuDeviceTotalMem_v2", 259, kNoContext, [&] {
    if (bad_device(device)) return kInvalidDevice;
    *bytes = values().memory_bytes;
    return kSuccess;
  });
}

CUresult cuDeviceGetAttribute(int* value, int number, CUdevice device) {
  return call("cuDeviceGetAttribute", 9, kNoContext, [&] {
    if (bad_device(device)) return kInvalidDevice;
    *value = attribute(number);
    return kSuccess;
  });
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return call("cuDeviceGetUuid_v2", 647, kNoContext, [&] {
    if (bad_device(device)) return kInvalidDevice;
    memcpy(uuid->bytes, "fake-gpu-for-te", 16);
    return kSuccess;
  });
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  return call("cuDeviceGetPCIBusId", 332, kNoContext, [&] {
    if (bad_device(device)) return kInvalidDevice;
    snprintf(text, size_t(length), "0000:01:00.0");
    return kSuccess;
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return call("cuDevicePrimaryCtxRetain", 386, kNoContext, [&] {
    if (bad_device(device)) return kInvalidDevice;
    std::lock_guard<std::mutex> hold(primary().lock);
    values().contexts = uint64_t(++primary().retained);
    *context = &primary();
    return kSuccess;
  });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return call("cuDevicePrimaryCtxRelease_v2", 544, kNoContext, [&] {
    if (bad_device(device)) return kInvalidDevice;
    std::lock_guard<std::mutex> hold(primary().lock);
    if (!primary().retained) return kInvalidContext;
    values().contexts = uint64_t(--primary().retained);
    return kSuccess;
  });
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  return call("cuDevicePrimaryCtxGetState", 392, kNoContext, [&] {
    if (bad_device(device)) return kInvalidDevice;
    std::lock_guard<std::mutex> hold(primary().lock);
    *flags = primary().flags;
    *active = primary().retained > 0;
    return kSuccess;
  });
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  return call("cuDevicePrimaryCtxSetFlags_v2", 0, kNoContext, [&] {
    if (bad_device(device)) return kInvalidDevice;
    std::lock_guard<std::mutex> hold(primary().lock);
    primary().flags = flags;
    return kSuccess;
  });
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  return call("cuCtxGetCurrent", 304, kNoContext, [&] {
    *context = current_context();
    return kSuccess;
  });
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return call("cuCtxSetCurrent", 303, kNoContext, [&] {
    if (context && context != &primary()) return kInvalidContext;
    if (!current.empty()) current.pop_back();
    if (context) current.push_back(context);
    return kSuccess;
  });
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  return call("cuCtxPushCurrent_v2", 323, kNoContext, [&] {
    if (context != &primary()) return kInvalidContext;
    current.push_back(context);
    return kSuccess;
  });
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  return call("cuCtxPopCurrent_v2", 324, kNoContext, [&] {
    if (current.empty()) return kInvalidContext;
    if (context) *context = current.back();
    current.pop_back();
    return kSuccess;
  });
}

CUresult cuCtxGetDevice(CUdevice* device) {
  return call("cuCtxGetDevice", 16, 0, [&] {
    *device = 0;
    return kSuccess;
  });
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  return call("cuCtxGetDevice_v2", 795, context ? unsigned(kNoContext) : 0u, [&] {
    *device = 0;
    return kSuccess;
  });
}

CUresult cuCtxGetId(CUcontext, unsigned long long* id) {
  return call("cuCtxGetId", 695, 0, [&] {
    *id = 1;
    return kSuccess;
  });
}

CUresult cuCtxGetFlags(unsigned* flags) {
  return call("cuCtxGetFlags", 391, 0, [&] {
    std::lock_guard<std::mutex> hold(primary().lock);
    *flags = primary().flags;
    return kSuccess;
  });
}

CUresult cuCtxGetApiVersion(CUcontext, unsigned* version) {
  return call("cuCtxGetApiVersion", 296, kNoContext, [&] {
    *version = 3020;
    return kSuccess;
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call("cuCtxGetStreamPriorityRange", 370, 0, [&] {
    *least = 0;
    *greatest = -5;
    return kSuccess;
  });
}

CUresult cuCtxSynchronize() {
  return call("cuCtxSynchronize", 17, kWaits, [&] { return wait_for_device(); });
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
  return call("cuCtxSynchronize_v2", 800, kWaits | (context ? unsigned(kNoContext) : 0u), [&] { return wait_for_device(); });
}

}  // extern "C"

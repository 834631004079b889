// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills. Pointers are checked when the call is made, as the driver does it.
#include <algorithm>
#include <cstring>

#include "call.h"
#include "fake.h"
#include "frames.h"
#include "memory.h"
#include "streams.h"

namespace {

enum class Side { unknown, host, device };

// Pageable memory is what nobody told the driver of.
Side side_of(uint64_t address, bool* pageable) {
  Allocation found;
  *pageable = !find_allocation(address, &found);
  if (*pageable) return Side::unknown;
  if (found.mapping) return found.mapping->frame->on_host ? Side::host : Side::device;
  return found.kind == Kind::pinned || found.kind == Kind::registered ? Side::host : Side::device;
}

// All of the range is memory. Beyond its ends this looks only where addresses are reserved.
bool is_memory(uint64_t address, uint64_t size, int access) {
  Allocation found;
  if (!find_allocation(address, &found)) return false;
  return found.mapping ? usable(address, size, access) : address + size <= found.end();
}

// Of pinned memory nothing is kept; a frame on the host is mapped like any other.
bool touch_known(uint64_t address, uint64_t size, int access) {
  Allocation found{};
  bool known = find_allocation(address, &found);
  if (!known && usable(address, size, access)) return true;  // pageable; and what was unmapped since the call is not
  return found.kind == Kind::pinned || found.kind == Kind::registered || touch(address, size, access);
}

void count(Side from, Side to, uint64_t size) {
  Values& v = values();
  if (from == Side::device && to == Side::device)
    v.bytes_dtod += size;
  else if (to == Side::device)
    v.bytes_htod += size;
  else
    v.bytes_dtoh += size;
}

// `wanted` are the sides that the function's name promises.
CUresult copy(uint64_t to, Side wanted_to, uint64_t from, Side wanted_from, uint64_t size, CUstream stream, bool wait) {
  if (!size) return kSuccess;
  bool pageable_to, pageable_from;
  Side to_side = side_of(to, &pageable_to), from_side = side_of(from, &pageable_from);
  if ((wanted_to == Side::device && pageable_to) || (wanted_from == Side::device && pageable_from)) return kInvalidValue;
  if (!usable(to, size, FAKE_WRITE) || !usable(from, size, FAKE_READ)) return kInvalidValue;
  auto target = stream_of(stream);
  if (!target) return kInvalidHandle;
  bool recorded = target->capturing() != nullptr;
  std::shared_ptr<std::vector<char>> staged;
  if (pageable_from && !recorded) {
    const char* bytes = reinterpret_cast<const char*>(from);
    staged = std::make_shared<std::vector<char>>(bytes, bytes + size);
  }
  CUresult result = submit(target, "copy", [=] {
    if (!touch_known(from, size, FAKE_READ) || !touch_known(to, size, FAKE_WRITE)) return;
    memmove(reinterpret_cast<void*>(to), staged ? staged->data() : reinterpret_cast<const void*>(from), size);
    count(pageable_from ? Side::host : from_side, pageable_to ? Side::host : to_side, size);
  });
  bool must_wait = (wait || pageable_to) && !recorded;
  return result || !must_wait ? result : wait_for(target);
}

template <class Word>
CUresult fill(uint64_t to, Word value, uint64_t count, CUstream stream, bool wait) {
  if (!count) return kSuccess;
  if (to % sizeof(Word) || !is_memory(to, count * sizeof(Word), FAKE_WRITE)) return kInvalidValue;
  auto target = stream_of(stream);
  if (!target) return kInvalidHandle;
  CUresult result = submit(target, "fill", [=] {
    if (!touch_known(to, count * sizeof(Word), FAKE_WRITE)) return;
    std::fill_n(reinterpret_cast<Word*>(to), count, value);
  });
  return result || !wait ? result : wait_for(target);
}

struct CopyParams {
  uint64_t to, from;
  size_t size;
  CUstream stream;
};
struct Fill8Params {
  uint64_t to;
  unsigned char value;
  size_t count;
  CUstream stream;
};
struct Fill32Params {
  uint64_t to;
  unsigned value;
  size_t count;
  CUstream stream;
};

constexpr Side kAny = Side::unknown, kDevice = Side::device;

}  // namespace

// The functions differ in the sides that their names promise.
#define COPY_ASYNC(name, cbid, T, to_side, F, from_side)                                             \
  CUresult name(T to, F from, size_t size, CUstream stream) {                                        \
    CopyParams params{(uint64_t)to, (uint64_t)from, size, stream};                                   \
    return call(#name, cbid, 0, &params, nullptr,                                                    \
                [&] { return copy(params.to, to_side, params.from, from_side, size, stream, false); }); \
  }
#define COPY_SYNC(name, cbid, T, to_side, F, from_side)                                              \
  CUresult name(T to, F from, size_t size) {                                                         \
    CopyParams params{(uint64_t)to, (uint64_t)from, size, nullptr};                                  \
    return call(#name, cbid, kWaits, &params, nullptr,                                               \
                [&] { return copy(params.to, to_side, params.from, from_side, size, nullptr, true); }); \
  }

extern "C" {

COPY_ASYNC(cuMemcpyAsync, 306, CUdeviceptr, kAny, CUdeviceptr, kAny)
COPY_ASYNC(cuMemcpyHtoDAsync_v2, 277, CUdeviceptr, kDevice, const void*, kAny)
COPY_ASYNC(cuMemcpyDtoHAsync_v2, 279, void*, kAny, CUdeviceptr, kDevice)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, 281, CUdeviceptr, kDevice, CUdeviceptr, kDevice)
COPY_SYNC(cuMemcpy, 305, CUdeviceptr, kAny, CUdeviceptr, kAny)
COPY_SYNC(cuMemcpyHtoD_v2, 276, CUdeviceptr, kDevice, const void*, kAny)
COPY_SYNC(cuMemcpyDtoH_v2, 278, void*, kAny, CUdeviceptr, kDevice)
COPY_SYNC(cuMemcpyDtoD_v2, 280, CUdeviceptr, kDevice, CUdeviceptr, kDevice)

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  Fill8Params params{to, value, count, stream};
  return call("cuMemsetD8Async", 216, 0, &params, nullptr, [&] { return fill(to, value, count, stream, false); });
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  Fill32Params params{to, value, count, stream};
  return call("cuMemsetD32Async", 220, 0, &params, nullptr, [&] { return fill(to, value, count, stream, false); });
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  Fill8Params params{to, value, count, nullptr};
  return call("cuMemsetD8_v2", 249, kWaits, &params, nullptr, [&] { return fill(to, value, count, nullptr, true); });
}

CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
  Fill32Params params{to, value, count, nullptr};
  return call("cuMemsetD32_v2", 251, kWaits, &params, nullptr, [&] { return fill(to, value, count, nullptr, true); });
}

}  // extern "C"

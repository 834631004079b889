// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills in a row.
#include "call.h"
#include "copies.h"

namespace {

// `wanted` are the sides that the function's name promises.
CUresult copy(uint64_t to, Side wanted_to, uint64_t from, Side wanted_from, uint64_t size, CUstream stream, bool wait) {
  if (!size) return kSuccess;
  if (wanted_to == Side::device && side_of(to) == Side::unknown) return kInvalidValue;
  if (wanted_from == Side::device && side_of(from) == Side::unknown) return kInvalidValue;
  return copy_pieces({{to, from, size}}, stream, wait);
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
  return call("cuMemsetD8Async", 216, 0, &params, nullptr,
              [&] { return fill_rows(to, 0, value, 1, count, 1, stream, false); });
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  Fill32Params params{to, value, count, stream};
  return call("cuMemsetD32Async", 220, 0, &params, nullptr,
              [&] { return fill_rows(to, 0, value, 4, count, 1, stream, false); });
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  Fill8Params params{to, value, count, nullptr};
  return call("cuMemsetD8_v2", 249, kWaits, &params, nullptr,
              [&] { return fill_rows(to, 0, value, 1, count, 1, nullptr, true); });
}

CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
  Fill32Params params{to, value, count, nullptr};
  return call("cuMemsetD32_v2", 251, kWaits, &params, nullptr,
              [&] { return fill_rows(to, 0, value, 4, count, 1, nullptr, true); });
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills of rows and planes, between peers (there is one device, its own peer), and in batches.
#include "call.h"
#include "copies.h"

namespace {

enum { kHostMemory = 1, kDeviceMemory = 2, kUnified = 4 };

struct End2 {
  size_t x, y;
  int type;
  const void* host;
  CUdeviceptr device;
  void* array;
  size_t pitch;
};
struct Copy2 {
  End2 from, to;
  size_t width, height;
};
static_assert(sizeof(Copy2) == 128, "as the driver lays it out");

struct End3 {
  size_t x, y, z, level;
  int type;
  const void* host;
  CUdeviceptr device;
  void* array;
  void* context;
  size_t pitch, height;
};
struct Copy3 {
  End3 from, to;
  size_t width, height, depth;
};
static_assert(sizeof(Copy3) == 200, "as the driver lays it out");

// Where a copy's end begins; 0 for what the fake does not have.
template <class End>
uint64_t base_of(const End& end) {
  if (end.type == kHostMemory) return reinterpret_cast<uint64_t>(end.host);
  return end.type == kDeviceMemory || end.type == kUnified ? end.device : 0;
}

CUresult copy2(const Copy2& c, CUstream stream, bool wait) {
  uint64_t from = base_of(c.from), to = base_of(c.to);
  if (!from || !to) return kNotSupported;
  if (c.height > 1 && (c.from.pitch < c.width || c.to.pitch < c.width)) return kInvalidValue;
  std::vector<Piece> rows;
  for (size_t y = 0; y < c.height; y++)
    rows.push_back({to + (c.to.y + y) * c.to.pitch + c.to.x, from + (c.from.y + y) * c.from.pitch + c.from.x, c.width});
  return copy_pieces(rows, stream, wait);
}

CUresult copy3(const Copy3& c, CUstream stream, bool wait) {
  uint64_t from = base_of(c.from), to = base_of(c.to);
  if (!from || !to) return kNotSupported;
  auto at = [](uint64_t base, const End3& end, size_t y, size_t z) {
    return base + ((end.z + z) * end.height + end.y + y) * end.pitch + end.x;
  };
  std::vector<Piece> rows;
  for (size_t z = 0; z < c.depth; z++)
    for (size_t y = 0; y < c.height; y++) rows.push_back({at(to, c.to, y, z), at(from, c.from, y, z), c.width});
  return copy_pieces(rows, stream, wait);
}

struct StructParams {
  const void* copy;
  CUstream stream;
};
struct PeerParams {
  CUdeviceptr to;
  CUcontext to_context;
  CUdeviceptr from;
  CUcontext from_context;
  size_t size;
  CUstream stream;
};
struct BatchParams {
  CUdeviceptr* to;
  CUdeviceptr* from;
  size_t* sizes;
  size_t count;
  void* attributes;
  size_t* first;
  size_t attribute_count;
  CUstream stream;
};
struct OldBatchParams {
  CUdeviceptr* to;
  CUdeviceptr* from;
  size_t* sizes;
  size_t count;
  void* attributes;
  size_t* first;
  size_t attribute_count;
  size_t* failed;
  CUstream stream;
};
template <class Word>
struct RowsParams {
  CUdeviceptr to;
  size_t pitch;
  Word value;
  size_t count, rows;
  CUstream stream;
};
struct Fill16Params {
  CUdeviceptr to;
  unsigned short value;
  size_t count;
  CUstream stream;
};

CUresult batch(const BatchParams& p) {
  if (!p.count || !p.to || !p.from || !p.sizes || !p.stream || !p.attribute_count) return kInvalidValue;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < p.count; i++) pieces.push_back({p.to[i], p.from[i], p.sizes[i]});
  return copy_pieces(pieces, p.stream, false);
}

}  // namespace

#define FILL_ROWS(name, sync_id, async_id, Word)                                                            \
  CUresult name##_v2(CUdeviceptr to, size_t pitch, Word value, size_t count, size_t rows) {                 \
    RowsParams<Word> params{to, pitch, value, count, rows, nullptr};                                        \
    return call(#name "_v2", sync_id, kWaits, &params, nullptr,                                             \
                [&] { return fill_rows(to, pitch, value, sizeof(Word), count, rows, nullptr, true); });     \
  }                                                                                                         \
  CUresult name##Async(CUdeviceptr to, size_t pitch, Word value, size_t count, size_t rows, CUstream stream) { \
    RowsParams<Word> params{to, pitch, value, count, rows, stream};                                         \
    return call(#name "Async", async_id, 0, &params, nullptr,                                               \
                [&] { return fill_rows(to, pitch, value, sizeof(Word), count, rows, stream, false); });     \
  }

extern "C" {

FILL_ROWS(cuMemsetD2D8, 252, 222, unsigned char)
FILL_ROWS(cuMemsetD2D16, 253, 224, unsigned short)
FILL_ROWS(cuMemsetD2D32, 254, 226, unsigned)

CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
  Fill16Params params{to, value, count, nullptr};
  return call("cuMemsetD16_v2", 250, kWaits, &params, nullptr,
              [&] { return fill_rows(to, 0, value, 2, count, 1, nullptr, true); });
}

CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  Fill16Params params{to, value, count, stream};
  return call("cuMemsetD16Async", 218, 0, &params, nullptr,
              [&] { return fill_rows(to, 0, value, 2, count, 1, stream, false); });
}

CUresult cuMemcpy2D_v2(const Copy2* copy) {
  StructParams params{copy, nullptr};
  return call("cuMemcpy2D_v2", 287, kWaits, &params, nullptr, [&] { return copy2(*copy, nullptr, true); });
}

CUresult cuMemcpy2DUnaligned_v2(const Copy2* copy) {
  StructParams params{copy, nullptr};
  return call("cuMemcpy2DUnaligned_v2", 288, kWaits, &params, nullptr, [&] { return copy2(*copy, nullptr, true); });
}

CUresult cuMemcpy2DAsync_v2(const Copy2* copy, CUstream stream) {
  StructParams params{copy, stream};
  return call("cuMemcpy2DAsync_v2", 289, 0, &params, nullptr, [&] { return copy2(*copy, stream, false); });
}

CUresult cuMemcpy3D_v2(const Copy3* copy) {
  StructParams params{copy, nullptr};
  return call("cuMemcpy3D_v2", 290, kWaits, &params, nullptr, [&] { return copy3(*copy, nullptr, true); });
}

CUresult cuMemcpy3DAsync_v2(const Copy3* copy, CUstream stream) {
  StructParams params{copy, stream};
  return call("cuMemcpy3DAsync_v2", 291, 0, &params, nullptr, [&] { return copy3(*copy, stream, false); });
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size) {
  PeerParams params{to, to_context, from, from_context, size, nullptr};
  return call("cuMemcpyPeer", 318, kWaits, &params, nullptr, [&] { return copy_pieces({{to, from, size}}, nullptr, true); });
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size,
                           CUstream stream) {
  PeerParams params{to, to_context, from, from_context, size, stream};
  return call("cuMemcpyPeerAsync", 319, 0, &params, nullptr,
              [&] { return copy_pieces({{to, from, size}}, stream, false); });
}

CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count, void* attributes, size_t* first,
                            size_t attribute_count, size_t* failed, CUstream stream) {
  OldBatchParams params{to, from, sizes, count, attributes, first, attribute_count, failed, stream};
  return call("cuMemcpyBatchAsync", 776, 0, &params, nullptr,
              [&] { return batch({to, from, sizes, count, attributes, first, attribute_count, stream}); });
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count, void* attributes,
                               size_t* first, size_t attribute_count, CUstream stream) {
  BatchParams params{to, from, sizes, count, attributes, first, attribute_count, stream};
  return call("cuMemcpyBatchAsync_v2", 796, 0, &params, nullptr, [&] { return batch(params); });
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
#include "copies.h"

#include <algorithm>
#include <cstring>

#include "fake.h"
#include "frames.h"
#include "memory.h"
#include "streams.h"
#include "values.h"

namespace {

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

// A piece that has been looked at: pageable bytes are taken when the call is made.
struct Ready {
  Piece piece;
  Side to, from;
  std::shared_ptr<std::vector<char>> staged;

  bool run() const {
    const auto& [to_address, from_address, size] = piece;
    if (!touch_known(from_address, size, FAKE_READ) || !touch_known(to_address, size, FAKE_WRITE)) return false;
    const void* source = staged ? staged->data() : reinterpret_cast<const void*>(from_address);
    memmove(reinterpret_cast<void*>(to_address), source, size);
    count(from == Side::unknown ? Side::host : from, to == Side::unknown ? Side::host : to, size);
    return true;
  }
};

}  // namespace

Side side_of(uint64_t address) {
  Allocation found;
  if (!find_allocation(address, &found)) return Side::unknown;
  if (found.mapping) return found.mapping->frame->on_host ? Side::host : Side::device;
  return found.kind == Kind::pinned || found.kind == Kind::registered ? Side::host : Side::device;
}

CUresult copy_pieces(const std::vector<Piece>& pieces, CUstream stream, bool wait) {
  auto target = stream_of(stream);
  if (!target) return kInvalidHandle;
  bool recorded = target->capturing() != nullptr;
  std::vector<Ready> ready;
  for (const Piece& piece : pieces) {
    if (!piece.size) continue;
    if (!usable(piece.to, piece.size, FAKE_WRITE) || !usable(piece.from, piece.size, FAKE_READ)) return kInvalidValue;
    Ready one{piece, side_of(piece.to), side_of(piece.from), nullptr};
    if (one.from == Side::unknown && !recorded) {
      const char* bytes = reinterpret_cast<const char*>(piece.from);
      one.staged = std::make_shared<std::vector<char>>(bytes, bytes + piece.size);
    }
    wait |= one.to == Side::unknown;
    ready.push_back(std::move(one));
  }
  if (ready.empty()) return kSuccess;
  CUresult result = submit(target, "copy", [ready = std::move(ready)] {
    for (const Ready& one : ready)
      if (!one.run()) return;
  });
  return result || !wait || recorded ? result : wait_for(target);
}

CUresult fill_rows(uint64_t to, uint64_t pitch, uint32_t value, unsigned width, uint64_t count, uint64_t rows,
                   CUstream stream, bool wait) {
  if (!count || !rows) return kSuccess;
  uint64_t size = count * width;
  if (to % width || (rows > 1 && (pitch % width || pitch < size))) return kInvalidValue;
  for (uint64_t row = 0; row < rows; row++)
    if (!is_memory(to + row * pitch, size, FAKE_WRITE)) return kInvalidValue;
  auto target = stream_of(stream);
  if (!target) return kInvalidHandle;
  CUresult result = submit(target, "fill", [=] {
    for (uint64_t row = 0; row < rows; row++) {
      uint64_t at = to + row * pitch;
      if (!touch_known(at, size, FAKE_WRITE)) return;
      if (width == 1)
        memset(reinterpret_cast<void*>(at), int(value), size);
      else if (width == 2)
        std::fill_n(reinterpret_cast<uint16_t*>(at), count, uint16_t(value));
      else
        std::fill_n(reinterpret_cast<uint32_t*>(at), count, value);
    }
  });
  return result || !wait ? result : wait_for(target);
}

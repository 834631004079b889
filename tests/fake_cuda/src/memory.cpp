// SPDX-License-Identifier: Apache-2.0
//
// Allocations: what is memory, of what kind, and how much there is of it.
#include "memory.h"

#include <sys/mman.h>

#include <cerrno>

#include "fake.h"
#include "pages.h"
#include "values.h"

std::mutex& memory_lock() {
  static auto* lock = new std::mutex;
  return *lock;
}

std::map<uint64_t, Allocation>& allocations() {
  static auto* all = new std::map<uint64_t, Allocation>;
  return *all;
}

Allocation* holding(uint64_t address) {
  auto after = allocations().upper_bound(address);
  if (after == allocations().begin()) return nullptr;
  Allocation& found = std::prev(after)->second;
  return address < found.end() ? &found : nullptr;
}

namespace {

uint64_t round_up(uint64_t size, uint64_t unit) { return (size + unit - 1) / unit * unit; }

std::atomic<uint64_t>& bytes_of(Kind kind) {
  Values& v = values();
  return kind == Kind::device ? v.device_bytes : kind == Kind::managed ? v.managed_bytes : v.pinned_bytes;
}

Allocation& insert(Kind kind, uint64_t base, uint64_t size) {
  values().allocations++;
  return allocations().emplace(base, Allocation{base, size, kind, new_id(), 4096, {}, {}, {}}).first->second;
}

}  // namespace

uint64_t new_id() {
  static uint64_t next = 1;
  return next++;
}

uint64_t map_memory(uint64_t size, uint64_t align, int protection) {
  uint64_t length = round_up(size, 4096) + align;
  void* got = mmap(nullptr, length, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return 0;
  uint64_t start = reinterpret_cast<uint64_t>(got), base = round_up(start, align);
  uint64_t end = base + round_up(size, 4096);
  if (base > start) munmap(got, base - start);
  if (end < start + length) munmap(reinterpret_cast<void*>(end), start + length - end);
  return base;
}

bool host_has_room(uint64_t size) {
  Values& v = values();
  return v.managed_bytes + v.pinned_bytes + v.host_frame_bytes + size <= v.host_bytes;
}

CUresult allocate(Kind kind, uint64_t size, uint64_t* base) {
  Values& v = values();
  if (!size) return kInvalidValue;
  std::lock_guard<std::mutex> hold(memory_lock());
  if (kind == Kind::device ? !make_room(size, ~0ull) : !host_has_room(size)) return kOutOfMemory;
  uint64_t align = kind == Kind::managed ? v.managed_align.load() : 4096;
  if (!(*base = map_memory(size, align, PROT_READ | PROT_WRITE))) return kOutOfMemory;
  if (kind != Kind::managed) madvise(reinterpret_cast<void*>(*base), size, MADV_HUGEPAGE);
  Allocation& made = insert(kind, *base, size);
  if (kind == Kind::managed) {
    made.page_bytes = v.page_bytes;
    uint64_t first = *base / made.page_bytes, last = (made.end() - 1) / made.page_bytes;
    made.pages.assign(last - first + 1, FAKE_NOWHERE);
    made.sent.assign(last - first + 1, -2);
  }
  bytes_of(kind) += size;
  return kSuccess;
}

CUresult release(Kind kind, uint64_t base) {
  std::lock_guard<std::mutex> hold(memory_lock());
  auto at = allocations().find(base);
  if (at == allocations().end()) return kInvalidValue;
  Allocation& old = at->second;
  bool of_cuMemFree = old.kind == Kind::device || old.kind == Kind::managed;
  if (kind == Kind::device ? !of_cuMemFree : old.kind != kind) return kInvalidValue;
  if (old.kind == Kind::managed) forget_pages(old);
  if (old.kind != Kind::registered) {
    bytes_of(old.kind) -= old.size;
    munmap(reinterpret_cast<void*>(base), round_up(old.size, 4096));
  }
  values().allocations--;
  allocations().erase(at);
  return kSuccess;
}

CUresult register_host(uint64_t base, uint64_t size) {
  if (!base || !size) return kInvalidValue;
  std::lock_guard<std::mutex> hold(memory_lock());
  if (holding(base)) return 712;  // already registered
  insert(Kind::registered, base, size);
  return kSuccess;
}

bool find_allocation(uint64_t address, Allocation* found) {
  std::lock_guard<std::mutex> hold(memory_lock());
  Allocation* at = holding(address);
  if (at) *found = {at->base, at->size, at->kind, at->id, at->page_bytes, {}, {}, at->mapping};
  return at;
}

bool all_managed(uint64_t address, uint64_t size) {
  std::lock_guard<std::mutex> hold(memory_lock());
  uint64_t end = address + size;
  if (end <= address) return false;
  while (address < end) {
    Allocation* at = holding(address);
    if (!at || at->kind != Kind::managed) return false;
    address = round_up(at->end(), at->page_bytes);
  }
  return true;
}

// SPDX-License-Identifier: Apache-2.0
#include "frames.h"

#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "call.h"
#include "fake.h"
#include "handles.h"
#include "pages.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace {

std::map<uint64_t, uint64_t>& reservations() {  // base, size
  static auto* all = new std::map<uint64_t, uint64_t>;
  return *all;
}
Registry<Frame>& frames() {
  static auto* all = new Registry<Frame>;
  return *all;
}

int file() {
  static int descriptor = memfd_create("frames", MFD_CLOEXEC);
  return descriptor;
}
uint64_t file_end = 0;  // offsets are not used twice: an old frame is a hole

thread_local bool in_item = false;
thread_local std::vector<std::shared_ptr<Frame>> used_here;

std::atomic<uint64_t>& bytes_of(bool on_host) { return on_host ? values().host_frame_bytes : values().frame_bytes; }

bool aligned(uint64_t value) { return value && value % kGranularity == 0; }

// The reservation that holds all of a range, or the end.
std::map<uint64_t, uint64_t>::iterator reservation_of(uint64_t address, uint64_t size) {
  auto& all = reservations();
  auto at = all.upper_bound(address);
  if (at == all.begin()) return all.end();
  --at;
  return address + size <= at->first + at->second ? at : all.end();
}

// The mappings that are exactly a range, in order; none if any part of it is not mapped.
std::vector<Allocation*> mappings_of(uint64_t address, uint64_t size) {
  std::vector<Allocation*> found;
  uint64_t end = address + size;
  while (address < end) {
    auto at = allocations().find(address);
    if (at == allocations().end() || !at->second.mapping || at->second.end() > end) return {};
    found.push_back(&at->second);
    address = at->second.end();
  }
  return found;
}

void hide(uint64_t address, uint64_t size) {
  mmap(reinterpret_cast<void*>(address), size, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

// A new frame holds nothing that anybody may rely on. (Written, not mapped: that costs no faults.)
bool poison(const Frame& frame) {
  std::vector<char> some(1 << 18, char(values().poison));
  uint64_t done = 0;
  while (done < frame.size) {
    ssize_t wrote = pwrite(file(), some.data(), std::min<uint64_t>(some.size(), frame.size - done), off_t(frame.at + done));
    if (wrote <= 0) return false;
    done += uint64_t(wrote);
  }
  return true;
}

bool in_use(const Allocation& a) {
  auto& uses = a.mapping->frame->uses;
  return std::any_of(uses.begin(), uses.end(), [&](const Use& use) { return use.through == a.mapping.get(); });
}

}  // namespace

Frame::Frame(uint64_t size, bool on_host) : size(size), at(file_end), on_host(on_host) {
  Values& v = values();
  file_end += size;
  v.frames++;
  bytes_of(on_host) += size;
  if (!on_host) v.peak_frame_bytes = std::max(v.peak_frame_bytes.load(), v.frame_bytes.load());
}

Frame::~Frame() {
  fallocate(file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(at), off_t(size));
  values().frames--;
  bytes_of(on_host) -= size;
}

CUresult reserve(uint64_t size, uint64_t align, uint64_t* base) {
  if (!aligned(size) || (align & (align - 1))) return kInvalidValue;
  std::lock_guard<std::mutex> hold(memory_lock());
  if (!(*base = map_memory(size, std::max(align, kGranularity), PROT_NONE))) return kOutOfMemory;
  reservations()[*base] = size;
  values().reserved_bytes += size;
  return kSuccess;
}

CUresult unreserve(uint64_t base, uint64_t size) {
  std::lock_guard<std::mutex> hold(memory_lock());
  auto at = reservations().find(base);
  if (at == reservations().end() || at->second != size) return kInvalidValue;
  auto first = allocations().lower_bound(base);
  if (first != allocations().end() && first->first < base + size) return kInvalidValue;  // still mapped
  munmap(reinterpret_cast<void*>(base), size);
  reservations().erase(at);
  values().reserved_bytes -= size;
  return kSuccess;
}

CUresult create_frame(uint64_t size, bool on_host, uint64_t* handle) {
  if (!aligned(size)) return kInvalidValue;
  std::lock_guard<std::mutex> hold(memory_lock());
  if (on_host ? !host_has_room(size) : !make_room(size, ~0ull)) return kOutOfMemory;
  auto frame = std::make_shared<Frame>(size, on_host);
  if (ftruncate(file(), off_t(file_end)) || !poison(*frame)) return kOutOfMemory;
  *handle = reinterpret_cast<uint64_t>(frames().add(frame));
  return kSuccess;
}

// The memory goes when the last mapping does.
CUresult release_frame(uint64_t handle) {
  std::lock_guard<std::mutex> hold(memory_lock());
  return frames().take(reinterpret_cast<Frame*>(handle)) ? kSuccess : kInvalidValue;
}

CUresult map_frame(uint64_t address, uint64_t size, uint64_t offset, uint64_t handle) {
  std::lock_guard<std::mutex> hold(memory_lock());
  auto frame = frames().get(reinterpret_cast<Frame*>(handle));
  if (!frame || !aligned(size) || address % kGranularity || offset % kGranularity) return kInvalidValue;
  if (offset + size > frame->size || reservation_of(address, size) == reservations().end()) return kInvalidValue;
  auto next = allocations().lower_bound(address);
  if (holding(address) || (next != allocations().end() && next->first < address + size)) return kInvalidValue;
  void* got = mmap(reinterpret_cast<void*>(address), size, PROT_NONE, MAP_FIXED | MAP_SHARED, file(), off_t(frame->at + offset));
  if (got == MAP_FAILED) return kOutOfMemory;
  auto mapping = std::make_shared<Mapping>(Mapping{frame, offset, kNoAccess});
  allocations().emplace(address, Allocation{address, size, Kind::mapped, new_id(), 4096, {}, {}, mapping});
  values().mappings++;
  values().mapped_bytes += size;
  return kSuccess;
}

CUresult unmap_frames(uint64_t address, uint64_t size) {
  std::lock_guard<std::mutex> hold(memory_lock());
  auto all = mappings_of(address, size);
  if (all.empty()) return kInvalidValue;
  for (Allocation* one : all) {
    if (in_use(*one)) {  // the bytes stay readable, so that the process lives to tell
      values().unmapped_in_use++;
      lose_context(kIllegalAddress);
    } else {
      hide(one->base, one->size);
    }
    values().mappings--;
    values().mapped_bytes -= one->size;
    allocations().erase(one->base);
  }
  return kSuccess;
}

CUresult set_access(uint64_t address, uint64_t size, int access) {
  if (access != kNoAccess && access != kReadAccess && access != kReadWriteAccess) return kInvalidValue;
  std::lock_guard<std::mutex> hold(memory_lock());
  auto all = mappings_of(address, size);
  if (all.empty()) return kInvalidValue;
  int protection = access == kReadWriteAccess ? PROT_READ | PROT_WRITE : access == kReadAccess ? PROT_READ : PROT_NONE;
  for (Allocation* one : all) {
    void* base = reinterpret_cast<void*>(one->base);
    mprotect(base, one->size, protection);
    // All at once: a fault for each page would take most of a test's time.
    if (access) madvise(base, one->size, MADV_POPULATE_READ);
    one->mapping->access = access;
  }
  return kSuccess;
}

int access_of(uint64_t address) {
  std::lock_guard<std::mutex> hold(memory_lock());
  Allocation* a = holding(address);
  return a && a->mapping ? a->mapping->access : -1;
}

namespace {

bool allows(const Mapping& mapping, int access) {
  return mapping.access == kReadWriteAccess || (mapping.access == kReadAccess && access == FAKE_READ);
}

}  // namespace

bool usable(uint64_t address, uint64_t size, int access) {
  std::lock_guard<std::mutex> hold(memory_lock());
  if (!size || reservation_of(address, 1) == reservations().end()) return true;
  for (uint64_t end = address + size; address < end;) {
    Allocation* a = holding(address);
    if (!a || !a->mapping || !allows(*a->mapping, access)) return false;
    address = a->end();
  }
  return true;
}

bool use(const Allocation& a, int access) {
  if (!a.mapping) return true;
  if (!allows(*a.mapping, access)) return false;
  if (!in_item) return true;
  auto& uses = a.mapping->frame->uses;
  auto me = std::this_thread::get_id();
  bool writes = access != FAKE_READ, known = false;
  for (Use& other : uses) {
    if (other.thread == me && other.through == a.mapping.get()) {
      other.writes |= writes;
      known = true;
    }
    if (other.thread != me && other.through != a.mapping.get() && (writes || other.writes)) values().alias_conflicts++;
  }
  if (known) return true;
  uses.push_back({me, a.mapping.get(), writes});
  used_here.push_back(a.mapping->frame);
  return true;
}

void begin_uses() { in_item = true; }

void end_uses() {
  in_item = false;
  if (used_here.empty()) return;
  std::lock_guard<std::mutex> hold(memory_lock());
  auto me = std::this_thread::get_id();
  for (auto& frame : used_here) {
    auto& uses = frame->uses;
    uses.erase(std::remove_if(uses.begin(), uses.end(), [&](const Use& one) { return one.thread == me; }), uses.end());
  }
  used_here.clear();
}

extern "C" int fake_access(uint64_t address) { return access_of(address); }

// SPDX-License-Identifier: Apache-2.0
//
// What the device does to memory: touching it, with faults where it is not; prefetch; discard.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>

#include "call.h"
#include "fake.h"
#include "frames.h"
#include "pages.h"

namespace {

std::atomic<void (*)(const fake_memory_event*)> memory_hook{nullptr};

std::mutex& ring_lock() {
  static auto* lock = new std::mutex;
  return *lock;
}
std::deque<fake_fault>& ring() {
  static auto* all = new std::deque<fake_fault>;
  return *all;
}

void tell(uint32_t kind, uint32_t flags, uint64_t value, uint64_t address, uint64_t start) {
  auto* hook = memory_hook.load();
  if (!hook || !value) return;
  fake_memory_event event{kind, flags, value, address, start, wall_ns()};
  hook(&event);
}

void record_faults(const std::vector<uint64_t>& missing, int access) {
  Values& v = values();
  v.faults += missing.size();
  std::lock_guard<std::mutex> hold(ring_lock());
  for (uint64_t address : missing) {
    if (ring().size() < v.fault_ring)
      ring().push_back({address, raw_ns(), uint32_t(access), uint32_t(missing.size())});
    else
      v.faults_dropped++;
  }
}

// Faults are served one block at a time, by one service for the whole card.
void serve(const std::vector<uint64_t>& missing, int access) {
  static auto* service = new std::mutex;
  std::lock_guard<std::mutex> one(*service);
  Values& v = values();
  uint64_t start = wall_ns(), bytes = 0;
  record_faults(missing, access);
  v.fault_services++;
  nap_ns(v.fault_ns);
  {
    std::lock_guard<std::mutex> hold(memory_lock());
    for (uint64_t address : missing) {
      Allocation* a = holding(address);
      if (!a || a->kind != Kind::managed) continue;  // freed meanwhile: the next look finds out
      if (make_room(a->page_bytes, address / kBlock))
        bytes += move_page(*a, page_index(*a, address), FAKE_DEVICE);
      else
        v.remote_pages++;
    }
    v.bytes_in_fault += bytes;
  }
  tell(FAKE_GPU_FAULT, uint32_t(access), missing.size(), missing.front(), start);
  tell(FAKE_BYTES_IN, 2, bytes, missing.front(), start);  // cause: coherence
}

// The pages of one allocation and one block that are not there.
std::vector<uint64_t> look(Allocation& a, uint64_t address, uint64_t stop, int access) {
  std::vector<uint64_t> missing;
  Values& v = values();
  for (uint64_t i = page_index(a, address); i <= page_index(a, stop - 1); i++) {
    uint8_t& page = a.pages[i];
    if (access == FAKE_READ && (page & kDiscarded)) v.discarded_reads++;
    if (access != FAKE_READ) page = uint8_t(page & ~kDiscarded);
    if ((page & kWhere) == FAKE_DEVICE) continue;
    if ((page & kAccessedBy) && (page & kPreferHost) && (page & kWhere) == FAKE_HOST)
      v.remote_pages++;
    else
      missing.push_back(std::max(page_address(a, i), a.base));
  }
  return missing;
}

}  // namespace

bool touch(uint64_t address, uint64_t size, int access) {
  uint64_t end = address + size;
  while (address < end) {
    std::vector<uint64_t> missing;
    {
      std::lock_guard<std::mutex> hold(memory_lock());
      Allocation* a = holding(address);
      if (!a || !use(*a, access)) {
        values().illegal_touches++;
        lose_context(kIllegalAddress);
        return false;
      }
      uint64_t stop = std::min(end, a->end());
      if (a->kind == Kind::managed) {
        stop = std::min(stop, (address / kBlock + 1) * kBlock);
        missing = look(*a, address, stop, access);
      }
      address = stop;
    }
    if (!missing.empty()) serve(missing, access);
  }
  return !values().lost;
}

void prefetch(uint64_t address, uint64_t size, bool to_device) {
  Values& v = values();
  uint64_t start = wall_ns(), bytes = 0, first = address;
  {
    std::lock_guard<std::mutex> hold(memory_lock());
    for (uint64_t end = address + size; address < end;) {
      Allocation* a = holding(address);
      if (!a || a->kind != Kind::managed) break;  // freed since the call
      uint64_t index = page_index(*a, address), block = address / kBlock;
      uint8_t& page = a->pages[index];
      if (!to_device)
        bytes += move_page(*a, index, FAKE_HOST);
      else if ((page & kWhere) == FAKE_DEVICE || make_room(a->page_bytes, block))
        bytes += move_page(*a, index, FAKE_DEVICE), refresh_block(block);
      page = uint8_t(page & ~kDiscarded);
      a->sent[index] = to_device ? 0 : -1;
      address = page_address(*a, index + 1);
    }
    (to_device ? v.bytes_in_prefetch : v.bytes_out_prefetch) += bytes;
  }
  tell(to_device ? FAKE_BYTES_IN : FAKE_BYTES_OUT, 3, bytes, first, start);  // cause: prefetch
}

void discard(uint64_t address, uint64_t size) {
  Values& v = values();
  std::lock_guard<std::mutex> hold(memory_lock());
  for (uint64_t end = address + size; address < end;) {
    Allocation* a = holding(address);
    if (!a || a->kind != Kind::managed) return;  // freed since the call
    uint64_t index = page_index(*a, address), next = page_address(*a, index + 1);
    uint64_t stop = std::min({end, next, a->end()});
    memset(reinterpret_cast<void*>(address), int(v.poison), stop - address);
    v.bytes_discarded += stop - address;
    bool whole = address <= std::max(page_address(*a, index), a->base) && stop == std::min(next, a->end());
    if (whole) {
      drop_page(*a, index);
      a->pages[index] = uint8_t(a->pages[index] | kDiscarded);
    }
    address = next;
  }
}

void forget_faults() {
  std::lock_guard<std::mutex> hold(ring_lock());
  ring().clear();
}

extern "C" {

int fake_next_fault(fake_fault* fault) {
  std::lock_guard<std::mutex> hold(ring_lock());
  if (ring().empty()) return 0;
  *fault = ring().front();
  ring().pop_front();
  return 1;
}

int fake_touch(uint64_t address, uint64_t size, int access) { return touch(address, size, access); }

int fake_host_touch(uint64_t address, uint64_t size, int access) {
  Values& v = values();
  std::lock_guard<std::mutex> hold(memory_lock());
  for (uint64_t end = address + size; address < end;) {
    Allocation* a = holding(address);
    if (!a || a->kind != Kind::managed) return 0;
    uint64_t index = page_index(*a, address);
    v.bytes_out_host += move_page(*a, index, FAKE_HOST);
    if (access != FAKE_READ) a->pages[index] = uint8_t(a->pages[index] & ~kDiscarded);
    address = page_address(*a, index + 1);
  }
  return 1;
}

void fake_set_memory_hook(void (*hook)(const fake_memory_event*)) { memory_hook = hook; }

}  // extern "C"

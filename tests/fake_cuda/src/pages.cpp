// SPDX-License-Identifier: Apache-2.0
//
// Residency page by page, and the driver's own eviction: the least recently moved 2 MiB block goes first.
#include "pages.h"

#include <algorithm>
#include <set>

#include "fake.h"
#include "values.h"

namespace {

struct Block {
  uint64_t stamp = 0, pages = 0;
};
std::map<uint64_t, Block>& blocks() {
  static auto* all = new std::map<uint64_t, Block>;
  return *all;
}
std::set<std::pair<uint64_t, uint64_t>>& order() {  // (stamp, block)
  static auto* all = new std::set<std::pair<uint64_t, uint64_t>>;
  return *all;
}
uint64_t next_stamp = 1;

void left_device(const Allocation& a, uint64_t index) {
  values().resident_bytes -= a.page_bytes;
  uint64_t block = page_address(a, index) / kBlock;
  Block& b = blocks()[block];
  if (--b.pages) return;
  order().erase({b.stamp, block});
  blocks().erase(block);
}

void came_to_device(const Allocation& a, uint64_t index) {
  Values& v = values();
  v.resident_bytes += a.page_bytes;
  v.peak_resident_bytes = std::max(v.peak_resident_bytes.load(), v.resident_bytes.load());
  uint64_t block = page_address(a, index) / kBlock;
  blocks()[block].pages++;
  refresh_block(block);
}

void evict_block(uint64_t block) {
  for (uint64_t address = block * kBlock; address < (block + 1) * kBlock;) {
    auto after = allocations().upper_bound(address);
    Allocation* a = holding(address);
    if (!a || a->kind != Kind::managed) {  // on to what begins later in the block
      if (after == allocations().end()) return;
      address = after->first;
      continue;
    }
    uint64_t index = page_index(*a, address);
    if ((a->pages[index] & kWhere) == FAKE_DEVICE) values().bytes_out_evicted += move_page(*a, index, FAKE_HOST);
    address = page_address(*a, index + 1);
  }
}

}  // namespace

void refresh_block(uint64_t block) {
  auto at = blocks().find(block);
  if (at == blocks().end()) return;
  order().erase({at->second.stamp, block});
  at->second.stamp = next_stamp++;
  order().insert({at->second.stamp, block});
}

bool make_room(uint64_t size, uint64_t keep) {
  Values& v = values();
  while (v.other_bytes + v.device_bytes + v.frame_bytes + v.resident_bytes + size > v.memory_bytes) {
    auto victim = order().begin();
    if (victim != order().end() && victim->second == keep) ++victim;
    if (victim == order().end()) return false;
    evict_block(victim->second);
  }
  return true;
}

uint64_t move_page(Allocation& a, uint64_t index, int where) {
  uint8_t& page = a.pages[index];
  int was = page & kWhere;
  if (was == where) return 0;
  // What was discarded or never written has nothing to copy.
  bool copies = was != FAKE_NOWHERE && !(page & kDiscarded);
  page = uint8_t((page & ~kWhere) | where);
  if (was == FAKE_DEVICE) left_device(a, index);
  if (where == FAKE_DEVICE) came_to_device(a, index);
  return copies ? a.page_bytes : 0;
}

void drop_page(Allocation& a, uint64_t index) { move_page(a, index, FAKE_NOWHERE); }

void forget_pages(Allocation& a) {
  for (uint64_t index = 0; index < a.pages.size(); index++) drop_page(a, index);
}

CUresult flag_pages(uint64_t address, uint64_t size, uint8_t set, uint8_t clear) {
  std::lock_guard<std::mutex> hold(memory_lock());
  for (uint64_t end = address + size; address < end;) {
    Allocation* a = holding(address);
    if (!a || a->kind != Kind::managed) return kInvalidValue;
    uint64_t index = page_index(*a, address);
    a->pages[index] = uint8_t((a->pages[index] & ~clear) | set);
    address = page_address(*a, index + 1);
  }
  return kSuccess;
}

bool common_flags(uint64_t address, uint64_t size, uint8_t* flags, int* sent) {
  std::lock_guard<std::mutex> hold(memory_lock());
  bool first = true;
  for (uint64_t end = address + size; address < end;) {
    Allocation* a = holding(address);
    if (!a || a->kind != Kind::managed) return false;
    uint64_t index = page_index(*a, address);
    *flags = first ? a->pages[index] : *flags & a->pages[index];
    *sent = first || *sent == a->sent[index] ? a->sent[index] : -2;
    first = false;
    address = page_address(*a, index + 1);
  }
  return !first;
}

extern "C" {

int fake_where(uint64_t address, int* discarded) {
  std::lock_guard<std::mutex> hold(memory_lock());
  Allocation* a = holding(address);
  if (!a || a->kind != Kind::managed) return -1;
  uint8_t page = a->pages[page_index(*a, address)];
  if (discarded) *discarded = (page & kDiscarded) != 0;
  return page & kWhere;
}

uint64_t fake_resident(uint64_t address, uint64_t size) {
  std::lock_guard<std::mutex> hold(memory_lock());
  uint64_t bytes = 0;
  for (uint64_t end = address + size; address < end;) {
    Allocation* a = holding(address);
    if (!a || a->kind != Kind::managed) break;
    uint64_t index = page_index(*a, address);
    if ((a->pages[index] & kWhere) == FAKE_DEVICE) bytes += a->page_bytes;
    address = page_address(*a, index + 1);
  }
  return bytes;
}

}  // extern "C"

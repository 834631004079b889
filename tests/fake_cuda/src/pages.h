// SPDX-License-Identifier: Apache-2.0
//
// Between the files of the memory: what is done with memory_lock() held.
#pragma once

#include <map>
#include <mutex>

#include "memory.h"

std::mutex& memory_lock();
std::map<uint64_t, Allocation>& allocations();
Allocation* holding(uint64_t address);
uint64_t new_id();

// Addresses aligned as asked, and zeros; 0 if there are none.
uint64_t map_memory(uint64_t size, uint64_t align, int protection);
bool host_has_room(uint64_t size);

// Makes the device have `size` bytes free, evicting the least recently moved blocks but `keep`; false if it cannot.
bool make_room(uint64_t size, uint64_t keep);

void forget_pages(Allocation& allocation);  // before it goes

inline uint64_t page_index(const Allocation& a, uint64_t address) {
  return address / a.page_bytes - a.base / a.page_bytes;
}
inline uint64_t page_address(const Allocation& a, uint64_t index) {
  return (a.base / a.page_bytes + index) * a.page_bytes;
}

// To the device or the host; returns the bytes that had to be copied. The device must have room.
uint64_t move_page(Allocation& a, uint64_t index, int where);
void drop_page(Allocation& a, uint64_t index);
void refresh_block(uint64_t block);  // now the most recently moved one

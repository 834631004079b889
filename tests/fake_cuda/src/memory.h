// SPDX-License-Identifier: Apache-2.0
//
// Device, pinned and managed memory, all of it host memory; and where each managed page is.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "abi.h"

constexpr uint64_t kBlock = 2u << 20;

enum class Kind : uint8_t { device, pinned, registered, managed, mapped };

struct Mapping;

enum PageFlags : uint8_t {
  kWhere = 3,  // mask: FAKE_NOWHERE, FAKE_HOST, FAKE_DEVICE
  kDiscarded = 4,
  kPreferHost = 8,
  kPreferDevice = 16,
  kAccessedBy = 32,
  kReadMostly = 64,
};

struct Allocation {
  uint64_t base, size;
  Kind kind;
  uint64_t id;
  uint64_t page_bytes;         // of managed memory
  std::vector<uint8_t> pages;  // PageFlags
  std::vector<int8_t> sent;    // last prefetched to: a device, -1 the host, -2 nowhere
  std::shared_ptr<Mapping> mapping;  // of a frame, if this is one: frames.h
  uint64_t end() const { return base + size; }
};

CUresult allocate(Kind kind, uint64_t size, uint64_t* base);
CUresult release(Kind kind, uint64_t base);
CUresult register_host(uint64_t base, uint64_t size);

// A copy of what is known of the allocation that an address lies in, page tables left out.
bool find_allocation(uint64_t address, Allocation* found);

// True if all of the range is managed memory (ends may be rounded to pages).
bool all_managed(uint64_t address, uint64_t size);

// Work of the device, run in the order of a stream.
bool touch(uint64_t address, uint64_t size, int access);  // false: not memory, and the context is lost
void prefetch(uint64_t address, uint64_t size, bool to_device);
void discard(uint64_t address, uint64_t size);

// Whole pages of a managed range get and lose flags.
CUresult flag_pages(uint64_t address, uint64_t size, uint8_t set, uint8_t clear);

// The flags that all pages of the range have (or the last-prefetch place, if all agree: else -2).
bool common_flags(uint64_t address, uint64_t size, uint8_t* flags, int* sent);

void forget_faults();

// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory: addresses without memory (reservations), memory without addresses (frames), and the mappings that join
// them. A mapping is an entry of the table of allocations; two mappings of one frame show the same bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "abi.h"

constexpr uint64_t kGranularity = 2u << 20;

enum : int { kNoAccess = 0, kReadAccess = 1, kReadWriteAccess = 3 };

struct Mapping;

// An item of work that touches a frame, until it ends.
struct Use {
  std::thread::id thread;
  const Mapping* through;
  bool writes;
};

struct Frame {
  Frame(uint64_t size, bool on_host);
  ~Frame();
  uint64_t size, at;  // at: offset in the file that all frames are parts of
  bool on_host;
  std::vector<Use> uses;
};

struct Mapping {
  std::shared_ptr<Frame> frame;
  uint64_t offset;
  int access;
};

struct Allocation;

CUresult reserve(uint64_t size, uint64_t align, uint64_t* base);
CUresult unreserve(uint64_t base, uint64_t size);
CUresult create_frame(uint64_t size, bool on_host, uint64_t* handle);
CUresult release_frame(uint64_t handle);
CUresult map_frame(uint64_t address, uint64_t size, uint64_t offset, uint64_t handle);
CUresult unmap_frames(uint64_t address, uint64_t size);
CUresult set_access(uint64_t address, uint64_t size, int access);
int access_of(uint64_t address);  // of the mapping there; -1 where there is none

// False where a reserved range is not mapped, or not for this access. Of other addresses it says true.
bool usable(uint64_t address, uint64_t size, int access);

// With memory_lock() held: this thread's item of work touches a mapping. False if it may not.
bool use(const Allocation& allocation, int access);

// An item of work begins, or has ended and touches nothing any more.
void begin_uses();
void end_uses();

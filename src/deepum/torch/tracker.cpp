// SPDX-License-Identifier: Apache-2.0
//
// PyTorch tells of each allocation and each free of its caching allocator, on every thread, only
// to C++: this hands the addresses on to two plain functions. It is compiled against the
// installed PyTorch.

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdint>

using namespace c10::cuda::CUDACachingAllocator;

namespace {
void (*on_alloc)(uint64_t, uint64_t);
void (*on_free)(uint64_t);
}  // namespace

// A tracker cannot be taken away again, so it is attached once in a process.
extern "C" void deepum_track(void (*alloc)(uint64_t, uint64_t), void (*free)(uint64_t)) {
  on_alloc = alloc;
  on_free = free;
  get()->attachAllocatorTraceTracker([](const TraceEntry& entry) {
    if (entry.action_ == TraceEntry::ALLOC)
      on_alloc(static_cast<uint64_t>(entry.addr_), entry.size_);
    else if (entry.action_ == TraceEntry::FREE_COMPLETED)
      on_free(static_cast<uint64_t>(entry.addr_));
  });
}

// SPDX-License-Identifier: Apache-2.0
//
// A fake of CUPTI's activity interface, for the unified-memory counters (kind 25) alone. Records wait until a flush.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <ctime>
#include <deque>
#include <mutex>

#include "fake.h"

using CUptiResult = int;
constexpr CUptiResult kOk = 0, kBadParameter = 1, kNoMore = 12, kInvalidKind = 21;
constexpr uint32_t kUnifiedMemory = 25;

// The current record of kind 25, as CUPTI lays it out.
struct __attribute__((packed)) Record {
  uint32_t kind, counter;
  uint64_t value, start, end, address;
  uint32_t from, to, stream, process, flags, pad;
  uint64_t processors[5];
};
static_assert(sizeof(Record) == 104, "as CUPTI lays it out");

struct CounterConfig {
  uint32_t scope, kind, device, enable;
};

using Request = void (*)(uint8_t** buffer, size_t* size, size_t* most);
using Complete = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid);

namespace {

std::mutex& lock() {
  static auto* one = new std::mutex;
  return *one;
}
std::deque<Record>& waiting() {
  static auto* all = new std::deque<Record>;
  return *all;
}
Request request = nullptr;
Complete complete = nullptr;
std::atomic<uint32_t> wanted{0};  // bit k: counter kind k
size_t dropped = 0;

void on_memory(const fake_memory_event* event) {
  if (!(wanted >> event->kind & 1)) return;
  bool out = event->kind == FAKE_BYTES_OUT;
  Record record{kUnifiedMemory, event->kind, event->value, event->start_ns, event->end_ns, event->address, 0, 0, ~0u,
                uint32_t(getpid()), event->flags, 0, {}};
  (out ? record.to : record.from) = ~0u;  // the host
  std::lock_guard<std::mutex> hold(lock());
  waiting().push_back(record);
}

// Fills one buffer of the user; false when nothing waits or no buffer was given.
bool deliver() {
  {
    std::lock_guard<std::mutex> hold(lock());
    if (waiting().empty() || !request) return false;
  }
  uint8_t* buffer = nullptr;
  size_t size = 0, most = 0, valid = 0;
  request(&buffer, &size, &most);
  {
    std::lock_guard<std::mutex> hold(lock());
    if (!buffer || size < sizeof(Record)) {
      dropped += waiting().size();
      waiting().clear();
      return false;
    }
    size_t count = size / sizeof(Record);
    if (most && most < count) count = most;
    for (; count && !waiting().empty(); count--, valid += sizeof(Record)) {
      memcpy(buffer + valid, &waiting().front(), sizeof(Record));
      waiting().pop_front();
    }
  }
  complete(nullptr, 0, buffer, size, valid);
  return true;
}

}  // namespace

extern "C" {

CUptiResult cuptiGetTimestamp(uint64_t* ns) {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  *ns = uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
  return kOk;
}

CUptiResult cuptiActivityRegisterCallbacks(Request on_request, Complete on_complete) {
  if (!on_request || !on_complete) return kBadParameter;
  std::lock_guard<std::mutex> hold(lock());
  request = on_request;
  complete = on_complete;
  return kOk;
}

CUptiResult cuptiActivityConfigureUnifiedMemoryCounter(CounterConfig* configs, uint32_t count) {
  if (!configs || !count) return kBadParameter;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t bit = 1u << (configs[i].kind & 31);
    if (configs[i].enable)
      wanted |= bit;
    else
      wanted &= ~bit;
  }
  return kOk;
}

CUptiResult cuptiActivityEnable(uint32_t kind) {
  uint64_t refusal = 0;
  fake_get("cupti_counters_refuse", &refusal);
  if (refusal) return CUptiResult(refusal);
  if (kind != kUnifiedMemory) return kInvalidKind;
  fake_set_memory_hook(on_memory);
  return kOk;
}

CUptiResult cuptiActivityDisable(uint32_t kind) {
  if (kind != kUnifiedMemory) return kInvalidKind;
  fake_set_memory_hook(nullptr);
  return kOk;
}

CUptiResult cuptiActivityFlushAll(uint32_t) {
  while (deliver()) {
  }
  return kOk;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, void** record) {
  if (!buffer || !record) return kBadParameter;
  uint8_t* next = *record ? static_cast<uint8_t*>(*record) + sizeof(Record) : buffer;
  if (next + sizeof(Record) > buffer + valid) return kNoMore;
  *record = next;
  return kOk;
}

CUptiResult cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* count) {
  std::lock_guard<std::mutex> hold(lock());
  *count = dropped;
  dropped = 0;
  return kOk;
}

}  // extern "C"

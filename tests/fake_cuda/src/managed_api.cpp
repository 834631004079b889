// SPDX-License-Identifier: Apache-2.0
//
// Advice, prefetch and discard of managed memory.
#include "call.h"
#include "fake.h"
#include "memory.h"
#include "streams.h"

namespace {

enum { kReadMostlyOn = 1, kReadMostlyOff, kPreferredOn, kPreferredOff, kAccessedByOn, kAccessedByOff };

bool is_host(const CUmemLocation& place) { return place.type >= kLocationHost && place.type <= kLocationHostNumaCurrent; }
bool is_device(const CUmemLocation& place) { return place.type == kLocationDevice && place.id == 0; }

// What the device must be able to do for this place, and the range be.
CUresult check(uint64_t address, uint64_t size, const CUmemLocation& place) {
  if (!is_host(place) && !is_device(place)) return kInvalidDevice;
  if (!values().concurrent_managed) return kInvalidDevice;
  return all_managed(address, size) ? kSuccess : kInvalidValue;
}

CUresult advise(uint64_t address, uint64_t size, int advice, const CUmemLocation& place) {
  if (!all_managed(address, size)) return kInvalidValue;
  bool needs_place = advice == kPreferredOn || advice >= kAccessedByOn;
  if (needs_place)
    if (CUresult error = check(address, size, place)) return error;
  uint8_t preferred = is_host(place) ? kPreferHost : kPreferDevice;
  switch (advice) {
    case kReadMostlyOn: return flag_pages(address, size, kReadMostly, 0);
    case kReadMostlyOff: return flag_pages(address, size, 0, kReadMostly);
    case kPreferredOn: return flag_pages(address, size, preferred, kPreferHost | kPreferDevice);
    case kPreferredOff: return flag_pages(address, size, 0, kPreferHost | kPreferDevice);
    case kAccessedByOn: return is_device(place) ? flag_pages(address, size, kAccessedBy, 0) : kSuccess;
    case kAccessedByOff: return is_device(place) ? flag_pages(address, size, 0, kAccessedBy) : kSuccess;
    default: return kInvalidValue;
  }
}

struct Range {
  uint64_t address, size;
  bool to_device;
};

// The call keeps its caller for a time that grows with the bytes.
void keep_caller(const std::vector<Range>& ranges) {
  Values& v = values();
  uint64_t bytes = 0;
  for (const Range& range : ranges) bytes += range.size;
  nap_ns(v.prefetch_call_ns + v.prefetch_ns_per_mib * (bytes >> 20));
}

CUresult send(std::vector<Range> ranges, bool drop, bool move, CUstream handle) {
  auto stream = stream_of(handle);
  if (!stream) return kInvalidHandle;
  if (stream->capturing()) return kCaptureUnsupported;
  CUresult result = submit(stream, move ? "prefetch" : "discard", [=] {
    for (const Range& range : ranges) {
      if (drop) discard(range.address, range.size);
      if (move) prefetch(range.address, range.size, range.to_device);
    }
  });
  if (!result && move) keep_caller(ranges);
  return result;
}

CUresult one(uint64_t address, uint64_t size, const CUmemLocation& place, unsigned flags, CUstream stream) {
  if (flags) return kInvalidValue;
  if (CUresult error = check(address, size, place)) return error;
  return send({{address, size, is_device(place)}}, false, true, stream);
}

CUresult batch(CUdeviceptr* addresses, size_t* sizes, size_t count, CUmemLocation* places, size_t* first, size_t place_count,
               unsigned long long flags, CUstream stream, bool drop, bool move) {
  if (flags || !count || !addresses || !sizes || !stream || stream == STREAM_LEGACY) return kInvalidValue;
  if (move && (!places || !first || !place_count || place_count > count || first[0])) return kInvalidValue;
  CUmemLocation host{kLocationHost, 0};
  std::vector<Range> ranges;
  for (size_t i = 0, at = 0; i < count; i++) {
    if (move && at + 1 < place_count && i >= first[at + 1]) {
      if (first[at + 1] <= first[at]) return kInvalidValue;
      at++;
    }
    const CUmemLocation& place = move ? places[at] : host;
    if (CUresult error = check(addresses[i], sizes[i], place)) return error;
    ranges.push_back({addresses[i], sizes[i], is_device(place)});
  }
  return send(std::move(ranges), drop, move, stream);
}

// Attributes of a range are what all of its pages agree on.
CUresult attribute(void* data, size_t size, int which, uint64_t address, uint64_t count) {
  uint8_t flags = 0;
  int sent = -2;
  if (!count || !common_flags(address, count, &flags, &sent)) return kInvalidValue;
  int preferred = flags & kPreferDevice ? 0 : flags & kPreferHost ? -1 : -2;
  auto type = [](int place) { return place == -2 ? 0 : place == -1 ? kLocationHost : kLocationDevice; };
  if (size < sizeof(int) || size % sizeof(int)) return kInvalidValue;
  int* out = static_cast<int*>(data);
  switch (which) {
    case 1: *out = (flags & kReadMostly) != 0; return kSuccess;
    case 2: *out = preferred; return kSuccess;
    case 3:
      for (size_t i = 0; i < size / sizeof(int); i++) out[i] = i == 0 && (flags & kAccessedBy) ? 0 : -2;
      return kSuccess;
    case 4: *out = sent; return kSuccess;
    case 5: *out = type(preferred); return kSuccess;
    case 6: *out = preferred; return kSuccess;
    case 7: *out = type(sent); return kSuccess;
    case 8: *out = sent; return kSuccess;
    default: return kInvalidValue;
  }
}

CUmemLocation old_place(CUdevice device) {
  return device == -1 ? CUmemLocation{kLocationHost, 0} : CUmemLocation{kLocationDevice, device};
}

struct PrefetchParams {
  uint64_t address;
  size_t size;
  CUmemLocation place;
  unsigned flags;
  CUstream stream;
};
struct BatchParams {
  CUdeviceptr* addresses;
  size_t* sizes;
  size_t count;
  CUmemLocation* places;
  size_t* first;
  size_t place_count;
  unsigned long long flags;
  CUstream stream;
};
struct DiscardParams {
  CUdeviceptr* addresses;
  size_t* sizes;
  size_t count;
  unsigned long long flags;
  CUstream stream;
};

}  // namespace

extern "C" {

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, int advice, CUmemLocation place) {
  return call("cuMemAdvise_v2", 715, 0, [&] { return advise(address, size, advice, place); });
}

CUresult cuMemAdvise(CUdeviceptr address, size_t size, int advice, CUdevice device) {
  return call("cuMemAdvise", 457, 0, [&] { return advise(address, size, advice, old_place(device)); });
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation place, unsigned flags, CUstream stream) {
  PrefetchParams params{address, size, place, flags, stream};
  return call("cuMemPrefetchAsync_v2", 716, 0, &params, nullptr, [&] { return one(address, size, place, flags, stream); });
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream stream) {
  return call("cuMemPrefetchAsync", 467, 0, [&] { return one(address, size, old_place(device), 0, stream); });
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr* addresses, size_t* sizes, size_t count, CUmemLocation* places, size_t* first,
                                 size_t place_count, unsigned long long flags, CUstream stream) {
  BatchParams params{addresses, sizes, count, places, first, place_count, flags, stream};
  return call("cuMemPrefetchBatchAsync", 784, 0, &params, nullptr, [&] {
    return batch(addresses, sizes, count, places, first, place_count, flags, stream, false, true);
  });
}

CUresult cuMemDiscardBatchAsync(CUdeviceptr* addresses, size_t* sizes, size_t count, unsigned long long flags,
                                CUstream stream) {
  DiscardParams params{addresses, sizes, count, flags, stream};
  return call("cuMemDiscardBatchAsync", 789, 0, &params, nullptr, [&] {
    return batch(addresses, sizes, count, nullptr, nullptr, 0, flags, stream, true, false);
  });
}

CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* addresses, size_t* sizes, size_t count, CUmemLocation* places,
                                           size_t* first, size_t place_count, unsigned long long flags, CUstream stream) {
  BatchParams params{addresses, sizes, count, places, first, place_count, flags, stream};
  return call("cuMemDiscardAndPrefetchBatchAsync", 791, 0, &params, nullptr, [&] {
    return batch(addresses, sizes, count, places, first, place_count, flags, stream, true, true);
  });
}

CUresult cuMemRangeGetAttribute(void* data, size_t size, int which, CUdeviceptr address, size_t count) {
  return call("cuMemRangeGetAttribute", 471, 0, [&] { return attribute(data, size, which, address, count); });
}

CUresult cuMemRangeGetAttributes(void** data, size_t* sizes, int* which, size_t number, CUdeviceptr address, size_t count) {
  return call("cuMemRangeGetAttributes", 472, 0, [&] {
    for (size_t i = 0; i < number; i++)
      if (CUresult error = attribute(data[i], sizes[i], which[i], address, count)) return error;
    return kSuccess;
  });
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
#include "call.h"
#include "streams.h"

namespace {

// A point in the work of a stream.
struct Point {
  std::mutex lock;
  std::condition_variable reached;
  bool done = false;
  uint64_t time_ns = 0;

  void reach() {
    std::lock_guard<std::mutex> hold(lock);
    done = true;
    time_ns = raw_ns();
    reached.notify_all();
  }
  bool is_reached() {
    std::lock_guard<std::mutex> hold(lock);
    return done;
  }
  void wait() {
    std::unique_lock<std::mutex> hold(lock);
    reached.wait(hold, [&] { return done; });
  }
};

}  // namespace

struct Event {
  unsigned flags = 0;
  std::mutex lock;
  std::shared_ptr<Point> point;      // of the last record; null: counts as reached
  std::shared_ptr<Capture> capture;  // the last record was captured
};

namespace {

enum { kDisableTiming = 2 };

Registry<Event>& events() {
  static auto* all = new Registry<Event>(&values().events);
  return *all;
}

CUresult record(CUevent handle, CUstream in) {
  auto event = events().get(handle);
  auto stream = stream_of(in);
  if (!event || !stream) return kInvalidHandle;
  auto capture = stream->capturing();
  auto point = capture ? nullptr : std::make_shared<Point>();
  {
    std::lock_guard<std::mutex> hold(event->lock);
    event->point = point;
    event->capture = capture;
  }
  return capture ? kSuccess : submit(stream, nullptr, [point] { point->reach(); });
}

CUresult wait(CUstream in, CUevent handle) {
  auto event = events().get(handle);
  auto stream = stream_of(in);
  if (!event || !stream) return kInvalidHandle;
  std::shared_ptr<Point> point;
  std::shared_ptr<Capture> theirs, mine = stream->capturing();
  {
    std::lock_guard<std::mutex> hold(event->lock);
    point = event->point;
    theirs = event->capture;
  }
  if (theirs && !mine) return join_capture(stream, theirs), kSuccess;
  if (mine && theirs != mine) return spoil(*mine), kCaptureIsolation;
  if (mine || !point) return kSuccess;
  return submit(stream, nullptr, [point] { point->wait(); });
}

// The point of an event, or an error.
CUresult point_of(CUevent handle, std::shared_ptr<Point>* point) {
  auto event = events().get(handle);
  if (!event) return kInvalidHandle;
  std::lock_guard<std::mutex> hold(event->lock);
  if (event->capture) return kCapturedEvent;
  *point = event->point;
  return kSuccess;
}

}  // namespace

extern "C" {

CUresult cuEventCreate(CUevent* handle, unsigned flags) {
  return call("cuEventCreate", 118, 0, [&] {
    auto event = std::make_shared<Event>();
    event->flags = flags;
    *handle = events().add(event);
    return kSuccess;
  });
}

CUresult cuEventDestroy_v2(CUevent handle) {
  return call("cuEventDestroy_v2", 325, 0, [&] { return events().take(handle) ? kSuccess : kInvalidHandle; });
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return call("cuEventRecord", 119, 0, [&] { return record(event, stream); });
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) {
  return call("cuEventRecordWithFlags", 587, 0, [&] { return record(event, stream); });
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  return call("cuStreamWaitEvent", 295, 0, [&] { return wait(stream, event); });
}

CUresult cuEventQuery(CUevent event) {
  return call("cuEventQuery", 120, kWaits, [&] {
    std::shared_ptr<Point> point;
    if (CUresult error = point_of(event, &point)) return error;
    return !point || point->is_reached() ? lost_or(kSuccess) : CUresult(kNotReady);
  });
}

CUresult cuEventSynchronize(CUevent event) {
  return call("cuEventSynchronize", 121, kWaits, [&] {
    std::shared_ptr<Point> point;
    if (CUresult error = point_of(event, &point)) return error;
    if (point) point->wait();
    return lost_or(kSuccess);
  });
}

CUresult cuEventElapsedTime_v2(float* ms, CUevent first, CUevent second) {
  return call("cuEventElapsedTime_v2", 780, 0, [&] {
    std::shared_ptr<Point> from, to;
    if (CUresult error = point_of(first, &from)) return error;
    if (CUresult error = point_of(second, &to)) return error;
    for (CUevent one : {first, second})
      if (events().get(one)->flags & kDisableTiming) return kInvalidHandle;
    if (!from || !to) return kInvalidHandle;
    if (!from->is_reached() || !to->is_reached()) return kNotReady;
    *ms = float(double(int64_t(to->time_ns - from->time_ns)) / 1e6);
    return kSuccess;
  });
}

CUresult cuEventElapsedTime(float* ms, CUevent first, CUevent second) {
  return cuEventElapsedTime_v2(ms, first, second);
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
#include "streams.h"

#include <atomic>

#include "call.h"
#include "frames.h"

namespace {

Registry<Stream>& streams() {
  static auto* all = new Registry<Stream>(&values().streams);
  return *all;
}

// The driver's own lock: whoever waits for room in a full queue keeps it.
std::mutex& door() {
  static auto* lock = new std::mutex;
  return *lock;
}

void serve(std::shared_ptr<Stream> stream) {
  std::unique_lock<std::mutex> hold(stream->lock);
  for (;;) {
    stream->work.wait(hold, [&] { return !stream->queue.empty() || stream->closing; });
    if (stream->queue.empty()) return;
    Item item = std::move(stream->queue.front());
    hold.unlock();
    run(item);
    item.work = nullptr;  // what it holds is given back before it counts as finished
    hold.lock();
    stream->queue.pop_front();
    stream->finished++;
    stream->room.notify_all();
    stream->progress.notify_all();
  }
}

std::shared_ptr<Stream> make(bool blocking, unsigned flags, int priority) {
  static std::atomic<uint64_t> next_id{3};
  auto stream = std::make_shared<Stream>();
  stream->blocking = blocking;
  stream->flags = flags;
  stream->priority = priority;
  stream->id = next_id++;
  std::thread(serve, stream).detach();
  return stream;
}

using Point = std::pair<std::shared_ptr<Stream>, uint64_t>;

struct Barrier {
  std::mutex lock;
  Point until;
};
Barrier& barrier() {
  static auto* one = new Barrier;
  return *one;
}

// Work that a new item must wait for: the legacy stream's and the blocking streams' take turns.
std::vector<Point> earlier(const std::shared_ptr<Stream>& stream) {
  std::vector<Point> waits;
  {
    std::lock_guard<std::mutex> hold(barrier().lock);
    if (barrier().until.first && barrier().until.first != stream) waits.push_back(barrier().until);
  }
  auto add = [&](const std::shared_ptr<Stream>& other) {
    std::lock_guard<std::mutex> hold(other->lock);
    if (other->finished < other->submitted) waits.emplace_back(other, other->submitted);
  };
  if (stream == legacy_stream()) {
    streams().each([&](const std::shared_ptr<Stream>& other) {
      if (other->blocking) add(other);
    });
  } else if (stream->blocking) {
    add(legacy_stream());
  }
  return waits;
}

}  // namespace

void run(const Item& item) {
  if (!item.kind) return item.work();
  if (values().lost || !exec_step(item.kind)) return;
  begin_uses();
  item.work();
  exec_end(item.kind);
  end_uses();
}

void Stream::wait_until(uint64_t ticket) {
  std::unique_lock<std::mutex> hold(lock);
  progress.wait(hold, [&] { return finished >= ticket; });
}

std::shared_ptr<Capture> Stream::capturing() {
  std::lock_guard<std::mutex> hold(lock);
  return capture;
}

std::shared_ptr<Stream> legacy_stream() {
  static auto* legacy = new std::shared_ptr<Stream>(make(false, 0, 0));
  return *legacy;
}

std::shared_ptr<Stream> stream_of(CUstream handle) {
  if (!handle || handle == STREAM_LEGACY) return legacy_stream();
  if (handle == STREAM_PER_THREAD) {
    struct Mine {
      std::shared_ptr<Stream> stream = open_stream(true, 0, 0);
      ~Mine() { close_stream(stream.get()); }
    };
    thread_local Mine mine;
    return mine.stream;
  }
  return streams().get(handle);
}

std::shared_ptr<Stream> open_stream(bool blocking, unsigned flags, int priority) {
  auto stream = make(blocking, flags, priority);
  streams().add(stream);
  return stream;
}

// The work already queued is still done.
CUresult close_stream(CUstream handle) {
  auto stream = streams().take(handle);
  if (!stream) return kInvalidHandle;
  std::lock_guard<std::mutex> hold(stream->lock);
  stream->closing = true;
  stream->work.notify_all();
  return kSuccess;
}

CUresult submit(CUstream handle, const char* kind, std::function<void()> work) {
  auto stream = stream_of(handle);
  return stream ? submit(stream, kind, std::move(work)) : kInvalidHandle;
}

CUresult submit(const std::shared_ptr<Stream>& stream, const char* kind, std::function<void()> work) {
  if (auto capture = stream->capturing()) {
    std::lock_guard<std::mutex> hold(capture->lock);
    if (capture->spoiled) return kCaptureInvalidated;
    capture->items.push_back({kind, std::move(work)});
    return kSuccess;
  }
  if (stream == legacy_stream() && legacy_excluded()) return kCaptureImplicit;
  Values& v = values();
  std::unique_lock<std::mutex> only(door(), std::defer_lock);
  if (v.queue_holds_lock) only.lock();
  auto waits = earlier(stream);
  std::unique_lock<std::mutex> hold(stream->lock);
  if (stream->queue.size() >= v.queue_entries) {
    v.queue_waits++;
    stream->room.wait(hold, [&] { return stream->queue.size() < v.queue_entries; });
  }
  if (!waits.empty()) {
    work = [waits = std::move(waits), kind, work = std::move(work)] {
      for (auto& [other, ticket] : waits) other->wait_until(ticket);
      run({kind, work});
    };
    kind = nullptr;
  }
  stream->queue.push_back({kind, std::move(work)});
  stream->submitted++;
  stream->work.notify_one();
  return kSuccess;
}

void hold_others(const std::shared_ptr<Stream>& stream) {
  uint64_t ticket;
  {
    std::lock_guard<std::mutex> hold(stream->lock);
    ticket = stream->submitted;
  }
  std::lock_guard<std::mutex> hold(barrier().lock);
  barrier().until = {stream, ticket};
}

CUresult lost_or(CUresult otherwise) {
  uint64_t lost = values().lost;
  return lost ? CUresult(lost) : otherwise;
}

CUresult wait_for(const std::shared_ptr<Stream>& stream) {
  uint64_t ticket;
  {
    std::lock_guard<std::mutex> hold(stream->lock);
    ticket = stream->submitted;
  }
  stream->wait_until(ticket);
  return lost_or(kSuccess);
}

CUresult wait_for_device() {
  std::vector<std::shared_ptr<Stream>> all{legacy_stream()};
  streams().each([&](const std::shared_ptr<Stream>& stream) { all.push_back(stream); });
  for (auto& stream : all) wait_for(stream);
  return lost_or(kSuccess);
}

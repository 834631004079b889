// SPDX-License-Identifier: Apache-2.0
//
// Stream capture: work is recorded instead of queued, and calls that would wait are refused meanwhile.
#include <algorithm>

#include "call.h"
#include "streams.h"

thread_local int thread_capture_mode = 0;

namespace {

enum { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

std::mutex& captures_lock() {
  static auto* lock = new std::mutex;
  return *lock;
}
std::vector<std::shared_ptr<Capture>>& captures() {
  static auto* all = new std::vector<std::shared_ptr<Capture>>;
  return *all;
}
uint64_t next_id = 1;

}  // namespace

void spoil(Capture& capture) {
  std::lock_guard<std::mutex> hold(capture.lock);
  capture.spoiled = true;
}

bool may_wait() {
  if (thread_capture_mode == kRelaxed) return true;
  bool may = true;
  std::lock_guard<std::mutex> hold(captures_lock());
  for (auto& capture : captures()) {
    bool global = capture->mode == kGlobal && thread_capture_mode == kGlobal;
    bool mine = capture->mode != kRelaxed && capture->thread == std::this_thread::get_id();
    if (!global && !mine) continue;
    spoil(*capture);
    may = false;
  }
  return may;
}

bool legacy_excluded() {
  bool excluded = false;
  std::lock_guard<std::mutex> hold(captures_lock());
  for (auto& capture : captures()) {
    auto origin = stream_of(capture->origin);
    if (!origin || !origin->blocking) continue;
    spoil(*capture);
    excluded = true;
  }
  return excluded;
}

CUresult begin_capture(const std::shared_ptr<Stream>& stream, int mode) {
  if (stream == legacy_stream()) return kCaptureUnsupported;
  std::lock_guard<std::mutex> hold(captures_lock());
  std::lock_guard<std::mutex> also(stream->lock);
  if (stream->capture) return kIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->origin = stream.get();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->id = next_id++;
  stream->capture = capture;
  captures().push_back(capture);
  return kSuccess;
}

void join_capture(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Capture>& capture) {
  std::lock_guard<std::mutex> hold(capture->lock);
  std::lock_guard<std::mutex> also(stream->lock);
  stream->capture = capture;
  capture->joined.push_back(stream);
}

CUresult end_capture(const std::shared_ptr<Stream>& stream, std::vector<Item>* items) {
  auto capture = stream->capturing();
  if (!capture) return kIllegalState;
  if (capture->origin != stream.get()) return kCaptureUnmatched;
  if (capture->mode != kRelaxed && capture->thread != std::this_thread::get_id()) return kCaptureWrongThread;
  {
    std::lock_guard<std::mutex> hold(captures_lock());
    auto& all = captures();
    all.erase(std::remove(all.begin(), all.end(), capture), all.end());
  }
  std::lock_guard<std::mutex> hold(capture->lock);
  capture->joined.push_back(stream);
  for (auto& weak : capture->joined) {
    if (auto member = weak.lock()) {
      std::lock_guard<std::mutex> also(member->lock);
      member->capture = nullptr;
    }
  }
  if (capture->spoiled) return kCaptureInvalidated;
  *items = capture->items;
  return kSuccess;
}

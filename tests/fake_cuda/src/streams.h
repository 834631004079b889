// SPDX-License-Identifier: Apache-2.0
//
// Streams: threads that run work in the order in which it was submitted; and the captures that record it instead.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "abi.h"
#include "handles.h"

struct Stream;

struct Item {
  const char* kind;  // as in "exec:<kind>"; null: bookkeeping, done even when the context is lost
  std::function<void()> work;
};

void run(const Item& item);

struct Capture {
  CUstream origin;
  int mode;
  std::thread::id thread;
  uint64_t id;
  std::mutex lock;
  bool spoiled = false;
  std::vector<Item> items;
  std::vector<std::weak_ptr<Stream>> joined;  // by waiting for an event of the capture
};

struct Stream : std::enable_shared_from_this<Stream> {
  bool blocking = true;  // takes turns with the legacy stream
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;

  std::mutex lock;
  std::condition_variable room, work, progress;
  std::deque<Item> queue;
  uint64_t submitted = 0, finished = 0;
  bool closing = false;
  std::shared_ptr<Capture> capture;

  void wait_until(uint64_t ticket);
  std::shared_ptr<Capture> capturing();
};

// The stream that a handle names (the default ones included), or null.
std::shared_ptr<Stream> stream_of(CUstream handle);
std::shared_ptr<Stream> legacy_stream();

// Queues work, waiting while the queue is full; or records it while the stream captures.
CUresult submit(CUstream handle, const char* kind, std::function<void()> work);
CUresult submit(const std::shared_ptr<Stream>& stream, const char* kind, std::function<void()> work);

// Whatever is submitted from now on, to any stream, waits for what this one was given until now.
void hold_others(const std::shared_ptr<Stream>& stream);

CUresult wait_for(const std::shared_ptr<Stream>& stream);
CUresult wait_for_device();
CUresult lost_or(CUresult otherwise);

std::shared_ptr<Stream> open_stream(bool blocking, unsigned flags, int priority);
CUresult close_stream(CUstream handle);

// Captures.
CUresult begin_capture(const std::shared_ptr<Stream>& stream, int mode);
void join_capture(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Capture>& capture);
CUresult end_capture(const std::shared_ptr<Stream>& stream, std::vector<Item>* items);
void spoil(Capture& capture);
bool legacy_excluded();  // a capture forbids work in the legacy stream; spoils it
extern thread_local int thread_capture_mode;

// SPDX-License-Identifier: Apache-2.0
#include "call.h"
#include "context.h"
#include "graph.h"
#include "streams.h"

namespace {

enum { kNonBlocking = 1 };
enum { kGeq = 0, kEq = 1, kAnd = 2, kNor = 3, kWaitFlush = 1 << 30 };

template <class Word>
bool holds(Word now, Word value, unsigned how) {
  switch (how & 3) {
    case kGeq: return std::make_signed_t<Word>(now - value) >= 0;
    case kEq: return now == value;
    case kAnd: return (now & value) != 0;
    default: return Word(~(now | value)) != 0;
  }
}

template <class Word>
CUresult wait_value(CUstream stream, CUdeviceptr address, Word value, unsigned flags) {
  if (address % sizeof(Word) || flags & ~unsigned(kWaitFlush | 3)) return kInvalidValue;
  return submit(stream, "wait_value", [=] {
    while (!holds<Word>(__atomic_load_n(reinterpret_cast<Word*>(address), __ATOMIC_ACQUIRE), value, flags)) {
      if (values().lost) return;
      nap_ns(50000);
    }
  });
}

template <class Word>
CUresult write_value(CUstream stream, CUdeviceptr address, Word value) {
  if (address % sizeof(Word)) return kInvalidValue;
  return submit(stream, "write_value",
                [=] { __atomic_store_n(reinterpret_cast<Word*>(address), value, __ATOMIC_RELEASE); });
}

CUresult with(CUstream handle, CUresult (*use)(const std::shared_ptr<Stream>&)) {
  auto stream = stream_of(handle);
  return stream ? use(stream) : kInvalidHandle;
}

CUresult capture_info(CUstream handle, int* status, uint64_t* id) {
  auto stream = stream_of(handle);
  if (!stream) return kInvalidHandle;
  auto capture = stream->capturing();
  *status = 0;
  if (!capture) return kSuccess;
  std::lock_guard<std::mutex> hold(capture->lock);
  *status = capture->spoiled ? 2 : 1;
  if (id) *id = capture->id;
  return kSuccess;
}

struct CaptureParams {
  CUstream stream;
  union {
    int mode;
    CUgraph* graph;
  };
};

}  // namespace

extern "C" {

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return call("cuStreamCreateWithPriority", 367, 0, [&] {
    if (flags & ~unsigned(kNonBlocking)) return kInvalidValue;
    *stream = open_stream(!(flags & kNonBlocking), flags, priority).get();
    return kSuccess;
  });
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return call("cuStreamCreate", 124, 0, [&] {
    if (flags & ~unsigned(kNonBlocking)) return kInvalidValue;
    *stream = open_stream(!(flags & kNonBlocking), flags, 0).get();
    return kSuccess;
  });
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  return call("cuStreamDestroy_v2", 326, 0, &stream, nullptr, [&] { return close_stream(stream); });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return call("cuStreamSynchronize", 126, kWaits, [&] {
    return with(handle, [](auto& stream) { return stream->capturing() ? kCaptureUnsupported : wait_for(stream); });
  });
}

CUresult cuStreamQuery(CUstream handle) {
  return call("cuStreamQuery", 125, kWaits, [&] {
    return with(handle, [](auto& stream) {
      if (stream->capturing()) return kCaptureUnsupported;
      std::lock_guard<std::mutex> hold(stream->lock);
      return stream->finished == stream->submitted ? lost_or(kSuccess) : CUresult(kNotReady);
    });
  });
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  return call("cuStreamGetPriority", 368, 0, [&] {
    auto stream = stream_of(handle);
    if (!stream) return kInvalidHandle;
    *priority = stream->priority;
    return kSuccess;
  });
}

CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  return call("cuStreamGetFlags", 369, 0, [&] {
    auto stream = stream_of(handle);
    if (!stream) return kInvalidHandle;
    *flags = stream->flags;
    return kSuccess;
  });
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  return call("cuStreamGetId", 693, 0, [&] {
    auto stream = stream_of(handle);
    if (!stream) return kInvalidHandle;
    *id = stream->id;
    return kSuccess;
  });
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return call("cuStreamGetCtx", 0, 0, [&] {
    if (!stream_of(handle)) return kInvalidHandle;
    *context = current_context();
    return kSuccess;
  });
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  return call("cuStreamGetDevice", 0, 0, [&] {
    if (!stream_of(handle)) return kInvalidHandle;
    *device = 0;
    return kSuccess;
  });
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
  return call("cuStreamWaitValue32_v2", 659, 0, [&] { return wait_value<uint32_t>(stream, address, value, flags); });
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
  return call("cuStreamWaitValue64_v2", 661, 0, [&] { return wait_value<uint64_t>(stream, address, value, flags); });
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned) {
  return call("cuStreamWriteValue32_v2", 663, 0, [&] { return write_value<uint32_t>(stream, address, value); });
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned) {
  return call("cuStreamWriteValue64_v2", 665, 0, [&] { return write_value<uint64_t>(stream, address, value); });
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
  return cuStreamWaitValue32_v2(stream, address, value, flags);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
  return cuStreamWriteValue32_v2(stream, address, value, flags);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return call("cuLaunchHostFunc", 527, 0, [&] {
    return submit(stream, "host_function", [=] {
      in_host_function = true;
      function(data);
      in_host_function = false;
      values().host_functions++;
    });
  });
}

CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void* data, unsigned) {
  return cuLaunchHostFunc(stream, function, data);
}

CUresult cuStreamIsCapturing(CUstream stream, int* status) {
  return call("cuStreamIsCapturing", 499, 0, [&] { return capture_info(stream, status, nullptr); });
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int* status, uint64_t* id, CUgraph* graph, const void** nodes,
                                   size_t* count) {
  return call("cuStreamGetCaptureInfo_v2", 0, 0, [&] {
    if (graph) *graph = nullptr;
    if (nodes) *nodes = nullptr;
    if (count) *count = 0;
    return capture_info(stream, status, id);
  });
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int* status, uint64_t* id, CUgraph* graph, const void** nodes,
                                   const void** edges, size_t* count) {
  if (edges) *edges = nullptr;
  return cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}

CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  return call("cuThreadExchangeStreamCaptureMode", 541, kNoContext, [&] {
    if (*mode < 0 || *mode > 2) return kInvalidValue;
    std::swap(*mode, thread_capture_mode);
    return kSuccess;
  });
}

CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
  CaptureParams params{handle, {}};
  params.mode = mode;
  return call("cuStreamBeginCapture_v2", 539, 0, &params, nullptr, [&] {
    auto stream = stream_of(handle);
    return stream ? begin_capture(stream, mode) : kInvalidHandle;
  });
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  CaptureParams params{handle, {}};
  params.graph = graph;
  return call("cuStreamEndCapture", 497, 0, &params, nullptr, [&] {
    auto stream = stream_of(handle);
    if (!stream) return kInvalidHandle;
    std::vector<Item> items;
    *graph = nullptr;
    CUresult result = end_capture(stream, &items);
    if (!result) *graph = add_graph(std::move(items));
    return result;
  });
}

}  // extern "C"

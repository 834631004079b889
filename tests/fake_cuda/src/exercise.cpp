// SPDX-License-Identifier: Apache-2.0
//
// A program that uses much of the fake at once, from several threads, to be run under sanitizers. Prints "ok" and
// returns 0 if all data came out right.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "abi.h"
#include "fake.h"

extern "C" {
CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext*, CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize();
CUresult cuMemAllocManaged(CUdeviceptr*, size_t, unsigned);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemPrefetchAsync_v2(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream);
CUresult cuMemDiscardBatchAsync(CUdeviceptr*, size_t*, size_t, unsigned long long, CUstream);
CUresult cuStreamCreate(CUstream*, unsigned);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned);
CUresult cuStreamBeginCapture_v2(CUstream, int);
CUresult cuStreamEndCapture(CUstream, CUgraph*);
CUresult cuStreamWaitValue32_v2(CUstream, CUdeviceptr, uint32_t, unsigned);
CUresult cuStreamWriteValue32_v2(CUstream, CUdeviceptr, uint32_t, unsigned);
CUresult cuGraphInstantiateWithFlags(CUgraphExec*, CUgraph, unsigned long long);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphExecDestroy(CUgraphExec);
CUresult cuGraphDestroy(CUgraph);
CUresult cuEventCreate(CUevent*, unsigned);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuModuleLoadData(CUmodule*, const void*);
CUresult cuModuleUnload(CUmodule);
CUresult cuModuleGetFunction(CUfunction*, CUmodule, const char*);
CUresult cuMemcpyDtoHAsync_v2(void*, CUdeviceptr, size_t, CUstream);
CUresult cuMemHostAlloc(void**, size_t, unsigned);
CUresult cuMemFreeHost(void*);
CUresult cuMemAddressReserve(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long);
CUresult cuMemAddressFree(CUdeviceptr, size_t);
CUresult cuMemCreate(uint64_t*, size_t, const void*, unsigned long long);
CUresult cuMemRelease(uint64_t);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, uint64_t, unsigned long long);
CUresult cuMemUnmap(CUdeviceptr, size_t);
CUresult cuMemSetAccess(CUdeviceptr, size_t, const void*, size_t);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void*, size_t, CUstream);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**,
                        void**);
int cuptiSubscribe(void**, void (*)(void*, uint32_t, uint32_t, const void*), void*);
int cuptiEnableDomain(uint32_t, void*, uint32_t);
int cuptiUnsubscribe(void*);
}

namespace {

void must(CUresult result, const char* what) {
  if (!result) return;
  fprintf(stderr, "%s: error %d\n", what, result);
  exit(1);
}
#define MUST(call) must(call, #call)

std::atomic<uint64_t> seen{0};
void on_callback(void*, uint32_t, uint32_t, const void*) { seen++; }

CUcontext context;
CUmodule module;
constexpr uint64_t kWords = 1 << 18;  // 1 MiB an array
constexpr CUmemLocation kDevice{kLocationDevice, 0}, kHost{kLocationHost, 0};

void launch(const char* name, CUstream stream, uint64_t a, uint64_t b, uint64_t c, uint32_t d) {
  CUfunction function;
  MUST(cuModuleGetFunction(&function, module, name));
  void* params[] = {&a, &b, &c, &d};
  MUST(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, params, nullptr));
}

void fill(CUstream stream, CUdeviceptr to, uint32_t value) {
  CUfunction function;
  MUST(cuModuleGetFunction(&function, module, "fill"));
  uint64_t count = kWords;
  void* params[] = {&to, &count, &value};
  MUST(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, params, nullptr));
}

// y = 1 + 3 * rounds, while another thread of this worker moves everything about and drops a scratch array.
void worker(uint32_t rounds) {
  MUST(cuCtxSetCurrent(context));
  CUstream compute, moves;
  CUevent event;
  CUdeviceptr x, y, scratch;
  uint64_t* sum;
  MUST(cuStreamCreate(&compute, 1));
  MUST(cuStreamCreate(&moves, 1));
  MUST(cuEventCreate(&event, 2));
  for (CUdeviceptr* one : {&x, &y, &scratch}) MUST(cuMemAllocManaged(one, kWords * 4, 1));
  MUST(cuMemHostAlloc(reinterpret_cast<void**>(&sum), 8, 0));
  fill(compute, x, 1);
  fill(compute, y, 1);
  std::thread mover([&] {
    MUST(cuCtxSetCurrent(context));
    for (uint32_t i = 0; i < rounds; i++)
      for (CUdeviceptr one : {x, y}) MUST(cuMemPrefetchAsync_v2(one, kWords * 4, i % 2 ? kDevice : kHost, 0, moves));
  });
  for (uint32_t i = 0; i < rounds; i++) {
    launch("axpy", compute, y, x, kWords, 3);
    fill(compute, scratch, i);
    MUST(cuEventRecord(event, compute));
    MUST(cuStreamWaitEvent(moves, event, 0));
    size_t size = kWords * 4;
    MUST(cuMemDiscardBatchAsync(&scratch, &size, 1, 0, moves));
    MUST(cuEventRecord(event, moves));
    MUST(cuStreamWaitEvent(compute, event, 0));
  }
  mover.join();
  CUgraph graph;
  CUgraphExec exec;
  MUST(cuStreamBeginCapture_v2(compute, 1));
  launch("reduce", compute, scratch, y, kWords, 0);
  MUST(cuStreamEndCapture(compute, &graph));
  MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
  *reinterpret_cast<uint32_t*>(sum) = 0;
  MUST(cuStreamWaitValue32_v2(compute, reinterpret_cast<CUdeviceptr>(sum), 7, 1));
  MUST(cuGraphLaunch(exec, compute));
  MUST(cuStreamWriteValue32_v2(moves, reinterpret_cast<CUdeviceptr>(sum), 7, 0));
  MUST(cuMemcpyDtoHAsync_v2(sum, scratch, 8, compute));
  MUST(cuStreamSynchronize(compute));
  if (*sum != kWords * (1 + 3 * rounds)) {
    fprintf(stderr, "sum is %llu\n", static_cast<unsigned long long>(*sum));
    exit(1);
  }
  MUST(cuGraphExecDestroy(exec));
  MUST(cuGraphDestroy(graph));
  for (CUdeviceptr one : {x, y, scratch}) MUST(cuMemFree_v2(one));
  MUST(cuMemFreeHost(sum));
  MUST(cuEventDestroy_v2(event));
  MUST(cuStreamDestroy_v2(compute));
  MUST(cuStreamDestroy_v2(moves));
}

// One range of addresses, whose content goes out through an alias of its frame and comes back in another one.
void remapper(uint32_t rounds) {
  constexpr size_t kSize = 2u << 20;
  struct { int type, handles; CUmemLocation place; void* none; uint64_t flags; } wanted{1, 0, kDevice, nullptr, 0};
  struct { CUmemLocation place; int flags; } access{kDevice, 3};
  MUST(cuCtxSetCurrent(context));
  CUstream stream;
  CUdeviceptr base, sum;
  uint64_t frames[2];
  void* host;
  MUST(cuStreamCreate(&stream, 1));
  MUST(cuMemHostAlloc(&host, kSize, 0));
  MUST(cuMemAddressReserve(&base, 3 * kSize, 0, 0, 0));
  auto map = [&](CUdeviceptr at, uint64_t frame) {
    MUST(cuMemMap(at, kSize, 0, frame, 0));
    MUST(cuMemSetAccess(at, kSize, &access, 1));
  };
  for (int i = 0; i < 2; i++) {
    MUST(cuMemCreate(&frames[i], kSize, &wanted, 0));
    map(base + (i + 1) * kSize, frames[i]);
  }
  map(base, frames[0]);
  fill(stream, base, 1);
  for (uint32_t i = 0; i < rounds; i++) {
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemUnmap(base, kSize));
    MUST(cuMemcpyDtoHAsync_v2(host, base + (1 + i % 2) * kSize, kSize, stream));
    MUST(cuMemcpyHtoDAsync_v2(base + (2 - i % 2) * kSize, host, kSize, stream));
    MUST(cuStreamSynchronize(stream));
    map(base, frames[(i + 1) % 2]);
    launch("axpy", stream, base, base, kWords, 1);
  }
  MUST(cuMemAllocManaged(&sum, 8, 1));
  launch("reduce", stream, sum, base, kWords, 0);
  MUST(cuMemcpyDtoHAsync_v2(host, sum, 8, stream));
  MUST(cuStreamSynchronize(stream));
  if (*static_cast<uint64_t*>(host) != kWords << rounds) {
    fprintf(stderr, "sum through remaps is %llu\n", static_cast<unsigned long long>(*static_cast<uint64_t*>(host)));
    exit(1);
  }
  MUST(cuMemUnmap(base, 3 * kSize));
  for (uint64_t frame : frames) MUST(cuMemRelease(frame));
  MUST(cuMemAddressFree(base, 3 * kSize));
  MUST(cuMemFree_v2(sum));
  MUST(cuMemFreeHost(host));
  MUST(cuStreamDestroy_v2(stream));
}

// Mistakes that a sanitizer must see: a discard beside a kernel that writes, an argument that is too short.
void race() {
  CUstream one, two;
  CUdeviceptr array;
  size_t size = kWords * 4;
  MUST(cuStreamCreate(&one, 1));
  MUST(cuStreamCreate(&two, 1));
  MUST(cuMemAllocManaged(&array, size, 1));
  for (int i = 0; i < 20; i++) {
    fill(one, array, 1);
    MUST(cuMemDiscardBatchAsync(&array, &size, 1, 0, two));
  }
  MUST(cuCtxSynchronize());
}

void overrun() {
  CUfunction function;
  MUST(cuModuleGetFunction(&function, module, "copy"));
  auto* words = new uint64_t[2];
  size_t claimed = 3 * sizeof *words;
  void* extra[] = {LAUNCH_PARAM_BUFFER_POINTER, words, LAUNCH_PARAM_BUFFER_SIZE, &claimed, LAUNCH_PARAM_END};
  MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
}

}  // namespace

int main(int count, char** args) {
  fake_set("memory_bytes", 14 << 20);  // less than the workers need
  fake_set("queue_entries", 8);
  fake_delay("exec:prefetch", 0, 200000);
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  MUST(cuModuleLoadData(&module, "image"));
  if (count > 1) return (std::string(args[1]) == "race" ? race : overrun)(), 0;
  void* subscriber;
  must(cuptiSubscribe(&subscriber, on_callback, nullptr), "cuptiSubscribe");
  must(cuptiEnableDomain(1, subscriber, 1), "cuptiEnableDomain");
  std::atomic<bool> done{false};
  uint64_t faults = 0;
  std::thread reader([&] {
    fake_fault fault;
    while (!done) {
      while (fake_next_fault(&fault)) faults++;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  std::vector<std::thread> workers;
  for (uint32_t i = 0; i < 3; i++) workers.emplace_back(worker, 20 + i);
  for (uint32_t i = 0; i < 2; i++) workers.emplace_back(remapper, 10 + i);
  for (auto& one : workers) one.join();
  done = true;
  reader.join();
  must(cuptiUnsubscribe(subscriber), "cuptiUnsubscribe");
  MUST(cuCtxSynchronize());
  MUST(cuModuleUnload(module));
  MUST(cuDevicePrimaryCtxRelease_v2(0));
  uint64_t left = 0, frames = 0;
  fake_get("allocations", &left);
  fake_get("frames", &frames);
  left += frames;
  if (left || !faults || !seen) return fprintf(stderr, "left %d, faults %d, seen %d\n", int(left), int(faults), int(seen)), 1;
  puts("ok");
  return 0;
}

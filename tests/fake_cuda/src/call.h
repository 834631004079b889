// SPDX-License-Identifier: Apache-2.0
//
// What every driver function does first and last: be counted, delayed, made to fail, shown to CUPTI.
#pragma once

#include "abi.h"
#include "values.h"

// What a function needs or does, beside its work.
enum : unsigned {
  kAnyTime = 1,        // works before cuInit
  kNoContext = 2,      // works without a current context
  kWaits = 4,          // not allowed while a capture in global mode goes on
};

struct Plan;  // of delays and failures; one for each name

Plan& plan_of(const char* function);
uint64_t planned_delay(Plan& plan);

class Call {
 public:
  Call(const char* function, uint32_t cbid, const void* params, unsigned flags, const char* symbol = nullptr);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  CUresult refused() const { return result_; }
  CUresult end(CUresult result) { return result_ = result; }

 private:
  void notify(int site);

  const char* function_;
  const char* symbol_;
  const void* params_;
  uint32_t cbid_;
  uint32_t correlation_ = 0;
  uint64_t correlation_data_ = 0;
  CUresult result_ = kSuccess;
};

// The body of a driver function, run unless the call was refused.
template <class Body>
CUresult call(const char* function, uint32_t cbid, unsigned flags, const void* params, const char* symbol, Body body) {
  Call here(function, cbid, params, flags, symbol);
  return here.refused() ? here.refused() : here.end(body());
}

template <class Body>
CUresult call(const char* function, uint32_t cbid, unsigned flags, Body body) {
  static const char none[64] = {};
  return call(function, cbid, flags, none, nullptr, body);
}

// The sticky error of the context: set once by a kernel that went wrong.
void lose_context(CUresult error);

// Work done by a stream's thread: counted and delayed as "exec:<kind>". A planned failure loses the context; false then.
bool exec_step(const char* kind);
void exec_end(const char* kind);  // ... and delayed as "exec:<kind>_end" before it ends

void mark_initialized();  // cuInit succeeded

// True while this thread runs a host function, which may not call the driver.
extern thread_local bool in_host_function;

bool may_wait();  // false if this thread must not wait because of a capture; spoils that capture

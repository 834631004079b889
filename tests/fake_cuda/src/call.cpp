// SPDX-License-Identifier: Apache-2.0
#include "call.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "context.h"
#include "fake.h"

struct Plan {
  std::mutex lock;
  uint64_t calls = 0, fixed_ns = 0, random_ns = 0;
  uint64_t fail_at = 0, fail_times = 0;  // calls until the first failure (0: none), and how many fail
  CUresult fail_with = kSuccess;
  uint64_t random = 0;
};

namespace {

std::mutex& plans_lock() {
  static auto* lock = new std::mutex;
  return *lock;
}
std::map<std::string, Plan>& plans() {
  static auto* all = new std::map<std::string, Plan>;
  return *all;
}

std::atomic<void (*)(const fake_api_event*)> api_hook{nullptr};
std::atomic<uint32_t> next_correlation{1};
std::atomic<const char*> last_failed{nullptr};
std::atomic<bool> initialized{false}, forked{false}, leaving{false};

// A forked child has the memory of its parent but none of its threads: the driver cannot be used there.
void after_fork() {
  if (initialized) forked = true;
}

struct AtLoad {
  AtLoad() { pthread_atfork(nullptr, nullptr, after_fork); }
  ~AtLoad() { leaving = true; }
} at_load;

// Counts a call, and returns what it must fail with.
CUresult step(Plan& plan) {
  std::lock_guard<std::mutex> hold(plan.lock);
  plan.calls++;
  if (!plan.fail_at) return kSuccess;
  if (plan.fail_at > 1) {
    plan.fail_at--;
    return kSuccess;
  }
  if (!--plan.fail_times) plan.fail_at = 0;
  return plan.fail_with;
}

// "cuMemFree" of "cuMemFree_v2": what tests call it.
std::string plain(const char* function) {
  std::string name(function);
  for (const char* ending : {"_ptsz", "_ptds", "_v2", "_v3", "_v4"}) {
    size_t at = name.size() - std::min(name.size(), strlen(ending));
    if (name.compare(at, std::string::npos, ending) == 0) name.resize(at);
  }
  return name;
}

}  // namespace

thread_local bool in_host_function = false;

Plan& plan_of(const char* function) {
  std::lock_guard<std::mutex> hold(plans_lock());
  return plans()[function];
}

uint64_t planned_delay(Plan& plan) {
  std::lock_guard<std::mutex> hold(plan.lock);
  if (!plan.random_ns) return plan.fixed_ns;
  if (!plan.random) plan.random = values().seed * 0x9E3779B97F4A7C15u + 1;
  plan.random ^= plan.random << 13;
  plan.random ^= plan.random >> 7;
  plan.random ^= plan.random << 17;
  return plan.fixed_ns + plan.random % plan.random_ns;
}

bool exec_step(const char* kind) {
  Plan& plan = plan_of((std::string("exec:") + kind).c_str());
  CUresult planned = step(plan);
  nap_ns(planned_delay(plan));
  if (planned) lose_context(planned);
  return !values().lost;
}

void exec_end(const char* kind) { nap_ns(planned_delay(plan_of((std::string("exec:") + kind + "_end").c_str()))); }

void lose_context(CUresult error) {
  uint64_t none = 0;
  values().lost.compare_exchange_strong(none, uint64_t(error));
}

Call::Call(const char* function, uint32_t cbid, const void* params, unsigned flags, const char* symbol)
    : function_(function), symbol_(symbol), params_(params), cbid_(cbid) {
  Plan& mine = plan_of(plain(function).c_str());
  Plan& any = plan_of("*");
  CUresult planned = step(mine);
  if (CUresult other = step(any); !planned) planned = other;
  if (planned) last_failed = function;
  nap_ns(planned_delay(mine) + planned_delay(any));
  if (cbid) notify(0);
  if (leaving) {
    result_ = kDeinitialized;
  } else if (forked) {
    result_ = kNotInitialized;
  } else if (planned) {
    result_ = planned;
  } else if (flags & kAnyTime) {
    return;
  } else if (!initialized) {
    result_ = kNotInitialized;
  } else if (in_host_function) {
    result_ = kNotPermitted;
  } else if (uint64_t lost = values().lost) {
    result_ = CUresult(lost);
  } else if (!(flags & kNoContext)) {
    result_ = context_error();
  }
  if (!result_ && (flags & kWaits) && !may_wait()) result_ = kCaptureUnsupported;
}

void mark_initialized() { initialized = true; }

Call::~Call() {
  if (cbid_) notify(1);
}

void Call::notify(int site) {
  auto* hook = api_hook.load();
  if (!hook) return;
  if (!correlation_) correlation_ = next_correlation++;
  fake_api_event event{site,     cbid_,           function_,           symbol_,      params_,
                       &result_, current_context(), &correlation_data_, correlation_};
  hook(&event);
}

extern "C" {

int fake_delay(const char* function, uint64_t fixed_ns, uint64_t random_ns) {
  Plan& plan = plan_of(function);
  std::lock_guard<std::mutex> hold(plan.lock);
  plan.fixed_ns = fixed_ns;
  plan.random_ns = random_ns;
  plan.random = 0;
  return 0;
}

int fake_fail(const char* function, uint64_t nth, int result, uint64_t times) {
  Plan& plan = plan_of(function);
  std::lock_guard<std::mutex> hold(plan.lock);
  plan.fail_at = times ? nth : 0;
  plan.fail_with = result;
  plan.fail_times = times;
  return 0;
}

uint64_t fake_calls(const char* function) {
  Plan& plan = plan_of(function);
  std::lock_guard<std::mutex> hold(plan.lock);
  return plan.calls;
}

const char* fake_failed(void) { return last_failed; }

void fake_set_api_hook(void (*hook)(const fake_api_event*)) { api_hook = hook; }

}  // extern "C"

void reset_plans() {
  std::lock_guard<std::mutex> hold(plans_lock());
  for (auto& [name, plan] : plans()) {
    std::lock_guard<std::mutex> also(plan.lock);
    plan.calls = plan.fixed_ns = plan.random_ns = plan.fail_at = plan.fail_times = plan.random = 0;
    plan.fail_with = kSuccess;
  }
}

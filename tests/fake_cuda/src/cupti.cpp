// SPDX-License-Identifier: Apache-2.0
//
// A fake of CUPTI's callback interface: one subscriber, driver functions only.
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "fake.h"

using CUptiResult = int;
constexpr CUptiResult kOk = 0, kBadParameter = 1, kUnknown = 999, kNoPrivilege = 35, kOneSubscriberOnly = 39;
constexpr uint32_t kDriverDomain = 1, kDomains = 10, kCallbacks = 1024;

// As CUPTI lays it out.
struct CallbackData {
  uint32_t site;
  const char* function;
  const void* params;
  void* result;
  const char* symbol;
  void* context;
  uint32_t context_uid;
  uint64_t* correlation_data;
  uint32_t correlation_id;
};
static_assert(sizeof(CallbackData) == 72, "as CUPTI lays it out");

using Callback = void (*)(void* user, uint32_t domain, uint32_t cbid, const void* data);

struct Subscriber {
  Callback callback;
  void* user;
};

namespace {

// A callback that is under way in another thread when its subscriber leaves may still be running afterwards: nothing
// says that CUPTI waits for it. So the objects stay.
std::atomic<Subscriber*> subscriber{nullptr};
std::vector<std::unique_ptr<Subscriber>>& all_subscribers() {
  static auto* all = new std::vector<std::unique_ptr<Subscriber>>;
  return *all;
}
std::atomic<bool> enabled[kCallbacks];

std::mutex& lock() {
  static auto* one = new std::mutex;
  return *one;
}

void on_api(const fake_api_event* event) {
  if (event->cbid >= kCallbacks || !enabled[event->cbid]) return;
  if (Subscriber* to = subscriber.load()) {
    CallbackData data{uint32_t(event->site), event->function,         event->params, event->result, event->symbol,
                      event->context,        1,                       event->correlation_data,     event->correlation_id};
    to->callback(to->user, kDriverDomain, event->cbid, &data);
  }
}

uint64_t setting(const char* name) {
  uint64_t value = 0;
  fake_get(name, &value);
  return value;
}

bool is(Subscriber* handle) { return handle && handle == subscriber.load(); }

}  // namespace

extern "C" {

CUptiResult cuptiGetVersion(uint32_t* version) {
  if (!version) return kBadParameter;
  *version = 130000;
  return kOk;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  *text = result == kOk                  ? "CUPTI_SUCCESS"
          : result == kBadParameter      ? "CUPTI_ERROR_INVALID_PARAMETER"
          : result == kNoPrivilege       ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
          : result == kOneSubscriberOnly ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
                                         : "CUPTI_ERROR_UNKNOWN";
  return kOk;
}

CUptiResult cuptiSubscribe(Subscriber** handle, Callback callback, void* user) {
  if (!handle || !callback) return kBadParameter;
  if (uint64_t refusal = setting("cupti_refuse")) return CUptiResult(refusal);
  std::lock_guard<std::mutex> hold(lock());
  if (subscriber.load()) return kOneSubscriberOnly;
  all_subscribers().push_back(std::make_unique<Subscriber>(Subscriber{callback, user}));
  subscriber = *handle = all_subscribers().back().get();
  fake_set_api_hook(on_api);
  return kOk;
}

// The later form: the same with parameters, of which none changes what the fake does.
CUptiResult cuptiSubscribe_v2(Subscriber** handle, Callback callback, void* user, void*) {
  return cuptiSubscribe(handle, callback, user);
}

CUptiResult cuptiUnsubscribe(Subscriber* handle) {
  std::lock_guard<std::mutex> hold(lock());
  if (!is(handle)) return kBadParameter;
  fake_set_api_hook(nullptr);
  for (auto& one : enabled) one = false;
  subscriber = nullptr;
  return kOk;
}

CUptiResult cuptiEnableCallback(uint32_t on, Subscriber* handle, uint32_t domain, uint32_t cbid) {
  if (!is(handle) || !domain || domain >= kDomains || (domain == kDriverDomain && cbid >= kCallbacks)) return kBadParameter;
  if (domain == kDriverDomain) enabled[cbid] = on != 0;
  return kOk;
}

CUptiResult cuptiEnableDomain(uint32_t on, Subscriber* handle, uint32_t domain) {
  if (!is(handle) || !domain || domain >= kDomains) return kBadParameter;
  if (domain == kDriverDomain)
    for (auto& one : enabled) one = on != 0;
  return kOk;
}

CUptiResult cuptiGetCallbackState(uint32_t* on, Subscriber* handle, uint32_t domain, uint32_t cbid) {
  if (!on || !is(handle) || cbid >= kCallbacks) return kBadParameter;
  *on = domain == kDriverDomain && enabled[cbid];
  return kOk;
}

CUptiResult cuptiFinalize(void) {
  Subscriber* left = subscriber.load();
  return left ? cuptiUnsubscribe(left) : kOk;
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
//
// Settings by name: for the harness, and from the environment for programs that no test steers from inside.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "fake.h"
#include "memory.h"
#include "values.h"

void reset_plans();

namespace {

std::map<std::string, std::atomic<uint64_t>*> table(bool settings) {
  std::map<std::string, std::atomic<uint64_t>*> all;
  Values& v = values();
  if (settings) {
#define X(name, value) all[#name] = &v.name;
    FAKE_SETTINGS(X)
#undef X
  } else {
#define X(name) all[#name] = &v.name;
    FAKE_COUNTERS(X)
    FAKE_GAUGES(X)
#undef X
  }
  return all;
}

std::atomic<uint64_t>* find(const char* name, bool settings) {
  static auto* set = new auto(table(true));
  static auto* counted = new auto(table(false));
  auto& all = settings ? *set : *counted;
  auto at = all.find(name);
  return at == all.end() ? nullptr : at->second;
}

// FAKE_CUDA="memory_bytes=1048576; delay:cuMemAlloc=1000+500; fail:cuMemFree=3,2,1"
// (a setting; a fixed and a random part in ns; the nth call, the result, how many times)
struct FromEnvironment {
  FromEnvironment() {
    const char* text = getenv("FAKE_CUDA");
    if (!text) return;
    std::string rest(text);
    while (!rest.empty()) {
      size_t end = rest.find(';');
      std::string one = rest.substr(0, end);
      rest = end == std::string::npos ? "" : rest.substr(end + 1);
      one.erase(0, one.find_first_not_of(' '));
      if (!one.empty() && !apply(one)) {
        fprintf(stderr, "FAKE_CUDA: cannot read '%s'\n", one.c_str());
        abort();
      }
    }
  }

  static bool apply(const std::string& one) {
    size_t equals = one.find('=');
    if (equals == std::string::npos) return false;
    std::string name = one.substr(0, equals);
    const char* value = one.c_str() + equals + 1;
    unsigned long long a = 0, b = 0, c = 1;
    if (name.rfind("delay:", 0) == 0)
      return sscanf(value, "%llu+%llu", &a, &b) >= 1 && !fake_delay(name.c_str() + 6, a, b);
    if (name.rfind("fail:", 0) == 0)
      return sscanf(value, "%llu,%llu,%llu", &a, &b, &c) >= 2 && !fake_fail(name.c_str() + 5, a, int(b), c);
    return sscanf(value, "%llu", &a) == 1 && !fake_set(name.c_str(), a);
  }
} from_environment;

}  // namespace

extern "C" {

int fake_set(const char* name, uint64_t value) {
  auto* setting = find(name, true);
  if (!setting) return -1;
  *setting = value;
  return 0;
}

int fake_get(const char* name, uint64_t* value) {
  auto* known = find(name, true);
  if (!known) known = find(name, false);
  if (!known) return -1;
  *value = *known;
  return 0;
}

void fake_reset(void) {
  Values& v = values();
#define X(name) v.name = 0;
  FAKE_COUNTERS(X)
#undef X
  v.peak_resident_bytes = v.resident_bytes.load();
  v.peak_frame_bytes = v.frame_bytes.load();
  reset_plans();
  forget_faults();
}

}  // extern "C"

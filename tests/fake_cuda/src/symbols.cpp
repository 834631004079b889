// SPDX-License-Identifier: Apache-2.0
//
// cuGetProcAddress: the newest form of a function that both the asker and the driver's version know.
#include <cstring>

#include "abi.h"
#include "functions.h"
#include "values.h"

extern "C" {
// Only the addresses matter here, so the types do not.
#define X(name, version, function) void function();
DRIVER_FUNCTIONS(X)
PER_THREAD_FUNCTIONS(X)
#undef X
}

namespace {

struct Known {
  const char* name;
  int version;
  void (*function)();
};

const Known kPlain[] = {
#define X(name, version, function) {#name, version, function},
    DRIVER_FUNCTIONS(X)};
const Known kPerThread[] = {PER_THREAD_FUNCTIONS(X)};
#undef X

// The last that fits: forms of one name stand in the order of their versions.
template <size_t n>
const Known* find(const Known (&table)[n], const char* name, int version, bool* known) {
  const Known* best = nullptr;
  int driver = int(values().driver_version);
  for (const Known& one : table) {
    if (strcmp(one.name, name)) continue;
    *known = true;
    if (one.version <= version && one.version <= driver) best = &one;
  }
  return best;
}

enum { kFound = 0, kNoSuch = 1, kTooOld = 2 };
constexpr uint64_t kPerThreadFlag = 2;

}  // namespace

CUresult proc_address(const char* name, void** function, int version, uint64_t flags, int* status) {
  bool known = false;
  const Known* found = flags & kPerThreadFlag ? find(kPerThread, name, version, &known) : nullptr;
  if (!found) found = find(kPlain, name, version, &known);
  *function = found ? reinterpret_cast<void*>(found->function) : nullptr;
  if (status) *status = found ? kFound : known ? kTooOld : kNoSuch;
  return found ? kSuccess : kNotFound;
}

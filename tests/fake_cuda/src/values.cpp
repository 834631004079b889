// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <ctime>

// Never destroyed: stream threads live until the process is gone.
Values& values() {
  static Values* all = new Values;
  return *all;
}

static uint64_t now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

uint64_t raw_ns() { return now(CLOCK_MONOTONIC_RAW); }
uint64_t wall_ns() { return now(CLOCK_REALTIME); }

void nap_ns(uint64_t ns) {
  if (!ns) return;
  timespec t{time_t(ns / 1000000000u), long(ns % 1000000000u)};
  while (nanosleep(&t, &t)) {
  }
}

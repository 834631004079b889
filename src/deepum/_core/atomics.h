/* SPDX-License-Identifier: Apache-2.0 */
/* What Cython cannot say: loads and stores that threads agree on, and a short sleep. */
#ifndef DEEPUM_ATOMICS_H
#define DEEPUM_ATOMICS_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

static inline uint64_t deepum_load(const uint64_t *at)
{
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline void deepum_store(uint64_t *at, uint64_t value)
{
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static inline uint32_t deepum_load32(const volatile uint32_t *at)
{
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline void deepum_store32(volatile uint32_t *at, uint32_t value)
{
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static inline uint64_t deepum_add(uint64_t *at, uint64_t value)
{
	return __atomic_add_fetch(at, value, __ATOMIC_ACQ_REL);
}

static inline void deepum_sleep(uint64_t nanoseconds)
{
	struct timespec span = { (time_t)(nanoseconds / 1000000000u), (long)(nanoseconds % 1000000000u) };

	nanosleep(&span, 0);
}

static inline uint64_t deepum_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Short sleeps of this thread end when they should, not up to 50 us later. */
static inline void deepum_wake_sharply(void)
{
#ifdef __linux__
	prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
#endif
}

/* One thread's own count; feed.pyx lends its copy to the other modules. */
static __thread int deepum_inside;

static inline int deepum_enter(void)
{
	return deepum_inside++;
}

static inline void deepum_leave(void)
{
	deepum_inside--;
}

#endif

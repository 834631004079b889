/* SPDX-License-Identifier: Apache-2.0 */
/* POSIX locks, and waits that end. */
#ifndef DEEPUM_THREADS_H
#define DEEPUM_THREADS_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

static inline void deepum_later(struct timespec *t, clockid_t clock, int64_t ns)
{
	clock_gettime(clock, t);
	ns += t->tv_nsec;
	t->tv_sec += ns / 1000000000;
	t->tv_nsec = ns % 1000000000;
}

static inline int deepum_recursive_init(pthread_mutex_t *mutex)
{
	pthread_mutexattr_t kind;
	int error;

	pthread_mutexattr_init(&kind);
	pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
	error = pthread_mutex_init(mutex, &kind);
	pthread_mutexattr_destroy(&kind);
	return error;
}

/* Whether the lock was had in time. */
static inline int deepum_lock_within(pthread_mutex_t *mutex, long milliseconds)
{
	struct timespec end;

	if (!pthread_mutex_trylock(mutex))
		return 1;
	deepum_later(&end, CLOCK_REALTIME, (int64_t)milliseconds * 1000000);
	return !pthread_mutex_timedlock(mutex, &end);
}

static inline int deepum_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t kind;
	int error;

	pthread_condattr_init(&kind);
	pthread_condattr_setclock(&kind, CLOCK_MONOTONIC);
	error = pthread_cond_init(cond, &kind);
	pthread_condattr_destroy(&kind);
	return error;
}

/* Whether there was a signal before the time was over. */
static inline int deepum_wait_for(pthread_cond_t *cond, pthread_mutex_t *mutex, long microseconds)
{
	struct timespec end;

	deepum_later(&end, CLOCK_MONOTONIC, (int64_t)microseconds * 1000);
	return !pthread_cond_timedwait(cond, mutex, &end);
}

#endif

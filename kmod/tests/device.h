/* SPDX-License-Identifier: GPL-2.0 */
/* A context of the module for tests: opened, set up, mapped. */
#ifndef DEVICE_H
#define DEVICE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <uapi/linux/deepum.h>

#include "tap.h"

#define BLOCK (2UL << 20)
#define DEVICE "/dev/deepum"

struct device {
	int fd;
	size_t blocks;
	volatile uint8_t *space;
	struct deepum_ring *ring;
	struct deepum_event *events;
};

static inline int setup(int fd, unsigned int frames, unsigned int events, uint64_t features)
{
	struct deepum_setup request = { .size = sizeof(request), .features = features,
					.frames = frames, .ring_events = events };

	return ioctl(fd, DEEPUM_IOC_SETUP, &request);
}

static inline struct device device_open(size_t blocks, unsigned int frames, unsigned int events,
					uint64_t features)
{
	struct device d = { .fd = open(DEVICE, O_RDWR | O_CLOEXEC), .blocks = blocks };

	CHECK(d.fd >= 0);
	CHECK_EQUAL(setup(d.fd, frames, events, features), 0);
	d.space = mmap(NULL, blocks * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, d.fd, 0);
	CHECK(d.space != MAP_FAILED);
	CHECK_EQUAL((uintptr_t)d.space % BLOCK, 0);
	d.ring = mmap(NULL, DEEPUM_RING_EVENTS + events * sizeof(struct deepum_event),
		      PROT_READ | PROT_WRITE, MAP_SHARED, d.fd, DEEPUM_MMAP_RING);
	CHECK((void *)d.ring != MAP_FAILED);
	CHECK_EQUAL(d.ring->size, events);
	CHECK_EQUAL(d.ring->event_bytes, sizeof(struct deepum_event));
	d.events = (void *)((char *)d.ring + DEEPUM_RING_EVENTS);
	return d;
}

static inline void device_close(struct device *d)
{
	CHECK_EQUAL(munmap((void *)d->space, d->blocks * BLOCK), 0);
	CHECK_EQUAL(munmap(d->ring,
			   DEEPUM_RING_EVENTS + d->ring->size * sizeof(struct deepum_event)), 0);
	CHECK_EQUAL(close(d->fd), 0);
}

static inline struct deepum_stats stats(const struct device *d)
{
	struct deepum_stats s = { .size = sizeof(s) };

	CHECK_EQUAL(ioctl(d->fd, DEEPUM_IOC_STATS, &s), 0);
	return s;
}

static inline int submit(int fd, struct deepum_command *commands, unsigned int count,
			 unsigned int flags)
{
	struct deepum_batch batch = { .size = sizeof(batch), .flags = flags, .count = count,
				      .records = (uintptr_t)commands };
	int result = ioctl(fd, DEEPUM_IOC_SUBMIT, &batch);

	return result ? result : (int)batch.done;
}

static inline int command(const struct device *d, unsigned int type, uint64_t block,
			  unsigned int count)
{
	struct deepum_command c = { .type = type, .block = block, .count = count };

	return submit(d->fd, &c, 1, DEEPUM_SUBMIT_WAIT);
}

static inline int notify(int fd, struct deepum_event *events, unsigned int count)
{
	struct deepum_batch batch = { .size = sizeof(batch), .count = count,
				      .records = (uintptr_t)events };
	int result = ioctl(fd, DEEPUM_IOC_NOTIFY, &batch);

	return result ? result : (int)batch.done;
}

static inline int note(const struct device *d, unsigned int type, uint64_t address,
		       uint64_t bytes)
{
	struct deepum_event e = { .type = type, .address = address, .bytes = bytes };

	return notify(d->fd, &e, 1);
}

static inline uint8_t where(const struct device *d, uint64_t block)
{
	uint8_t state = 0xFF;
	struct deepum_residency r = { .size = sizeof(r), .block = block, .count = 1,
				      .states = (uintptr_t)&state };

	CHECK_EQUAL(ioctl(d->fd, DEEPUM_IOC_RESIDENCY, &r), 0);
	return state;
}

static inline unsigned int state(const struct device *d, uint64_t block)
{
	return where(d, block) & DEEPUM_STATE_MASK;
}

/* Take the next event off the ring; type 0: there is none. */
static inline struct deepum_event next_event(struct device *d)
{
	struct deepum_event event = { 0 };
	uint64_t tail = d->ring->tail;

	if (__atomic_load_n(&d->ring->head, __ATOMIC_ACQUIRE) == tail)
		return event;
	event = d->events[tail % d->ring->size];
	__atomic_store_n(&d->ring->tail, tail + 1, __ATOMIC_SEQ_CST);
	return event;
}

/* What could be had, in KiB: pages that processors keep at hand included. */
static inline long available_kib(void)
{
	FILE *f = fopen("/proc/meminfo", "r");
	char line[128];
	long value = 0, pages;

	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %ld", &pages) == 1)
			value = pages;
	fclose(f);
	f = fopen("/proc/zoneinfo", "r");
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, " count: %ld", &pages) == 1)
			value += pages * 4;
	fclose(f);
	return value;
}

static inline void fill(struct device *d, size_t block, uint64_t seed)
{
	uint64_t *words = (uint64_t *)(d->space + block * BLOCK);
	size_t i;

	for (i = 0; i < BLOCK / 8; i += 8)
		words[i] = seed * 0x9E3779B97F4A7C15u + i;
}

static inline int holds(struct device *d, size_t block, uint64_t seed)
{
	uint64_t *words = (uint64_t *)(d->space + block * BLOCK);
	size_t i;

	for (i = 0; i < BLOCK / 8; i += 8)
		if (words[i] != seed * 0x9E3779B97F4A7C15u + i)
			return 0;
	return 1;
}

static inline int is_zero(struct device *d, size_t block)
{
	uint64_t *words = (uint64_t *)(d->space + block * BLOCK);
	size_t i;

	for (i = 0; i < BLOCK / 8; i++)
		if (words[i])
			return 0;
	return 1;
}

#endif

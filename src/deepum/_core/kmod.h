/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel module's requests as small functions: 0 or a negative errno. */
#ifndef DEEPUM_KMOD_H
#define DEEPUM_KMOD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <uapi/linux/deepum.h>

#define DEEPUM_DEVICE "/dev/deepum"
#define DEEPUM_BLOCK_SIZE ((uint64_t)1 << DEEPUM_BLOCK_SHIFT)

static inline int deepum_kmod_open(void)
{
	int fd = open(DEEPUM_DEVICE, O_RDWR | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

static inline int deepum_kmod_setup(int fd, uint32_t frames, uint32_t events, uint32_t patience_us)
{
	struct deepum_setup s;

	memset(&s, 0, sizeof(s));
	s.size = sizeof(s);
	s.frames = frames;
	s.ring_events = events;
	s.patience_us = patience_us;
	return ioctl(fd, DEEPUM_IOC_SETUP, &s) ? -errno : 0;
}

static inline uint64_t deepum_kmod_ring_bytes(uint32_t events)
{
	return DEEPUM_RING_EVENTS + (uint64_t)events * sizeof(struct deepum_event);
}

static inline struct deepum_ring *deepum_kmod_ring(int fd, uint32_t events)
{
	void *ring = mmap(NULL, deepum_kmod_ring_bytes(events), PROT_READ | PROT_WRITE, MAP_SHARED,
			  fd, (off_t)DEEPUM_MMAP_RING);

	return ring == MAP_FAILED ? NULL : ring;
}

/* The next event, or none: the slot is the module's again from here on. */
static inline int deepum_kmod_next(struct deepum_ring *ring, uint32_t size,
				   struct deepum_event *event)
{
	uint64_t tail = ring->tail;

	if (__atomic_load_n(&ring->head, __ATOMIC_ACQUIRE) == tail)
		return 0;
	*event = ((struct deepum_event *)((char *)ring + DEEPUM_RING_EVENTS))[tail & (size - 1)];
	/* In order with the next look at head: the module looks the other way round. */
	__atomic_store_n(&ring->tail, tail + 1, __ATOMIC_SEQ_CST);
	return 1;
}

static inline int deepum_kmod_pending(struct deepum_ring *ring)
{
	return __atomic_load_n(&ring->head, __ATOMIC_SEQ_CST) != ring->tail;
}

static inline uint64_t deepum_kmod_dropped(struct deepum_ring *ring)
{
	return __atomic_load_n(&ring->dropped, __ATOMIC_ACQUIRE);
}

/* Hand in commands; `done` says how many were taken. */
static inline int deepum_kmod_submit(int fd, const struct deepum_command *commands, uint32_t count,
				     uint32_t flags, uint32_t *done)
{
	struct deepum_batch b;
	int error;

	memset(&b, 0, sizeof(b));
	b.size = sizeof(b);
	b.flags = flags;
	b.count = count;
	b.records = (uintptr_t)commands;
	error = ioctl(fd, DEEPUM_IOC_SUBMIT, &b) ? -errno : 0;
	*done = b.done;
	return error;
}

static inline int deepum_kmod_notify(int fd, const struct deepum_event *event)
{
	struct deepum_batch b;

	memset(&b, 0, sizeof(b));
	b.size = sizeof(b);
	b.count = 1;
	b.records = (uintptr_t)event;
	return ioctl(fd, DEEPUM_IOC_NOTIFY, &b) ? -errno : 0;
}

static inline int deepum_kmod_note(int fd, uint32_t type, uint64_t address, uint64_t bytes)
{
	struct deepum_event e;

	memset(&e, 0, sizeof(e));
	e.type = type;
	e.address = address;
	e.bytes = bytes;
	return deepum_kmod_notify(fd, &e);
}

static inline int deepum_kmod_residency(int fd, uint64_t block, uint32_t count, uint8_t *states)
{
	struct deepum_residency r;

	memset(&r, 0, sizeof(r));
	r.size = sizeof(r);
	r.block = block;
	r.count = count;
	r.states = (uintptr_t)states;
	return ioctl(fd, DEEPUM_IOC_RESIDENCY, &r) ? -errno : 0;
}

static inline int deepum_kmod_stats(int fd, struct deepum_stats *stats)
{
	memset(stats, 0, sizeof(*stats));
	stats->size = sizeof(*stats);
	return ioctl(fd, DEEPUM_IOC_STATS, stats) ? -errno : 0;
}

static inline int deepum_kmod_features(int fd, uint64_t *features)
{
	struct deepum_features f;

	memset(&f, 0, sizeof(f));
	f.size = sizeof(f);
	if (ioctl(fd, DEEPUM_IOC_FEATURES, &f))
		return -errno;
	*features = f.features;
	return 0;
}

static inline int deepum_kmod_observe(int fd, const struct deepum_uvm *layout)
{
	struct deepum_uvm u = *layout;

	u.size = sizeof(u);
	return ioctl(fd, DEEPUM_IOC_UVM, &u) ? -errno : 0;
}

/* Addresses without memory, aligned to blocks. NULL: there are none left. */
static inline void *deepum_kmod_reserve(uint64_t bytes)
{
	uint64_t slack = DEEPUM_BLOCK_SIZE, start;
	char *place = mmap(NULL, bytes + slack, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (place == MAP_FAILED)
		return NULL;
	start = ((uintptr_t)place + slack - 1) & ~(slack - 1);
	if (start > (uintptr_t)place)
		munmap(place, start - (uintptr_t)place);
	munmap((char *)start + bytes, (uintptr_t)place + slack - start);
	return (void *)start;
}

/* UM space at its own address: the offset in the file is the address. */
static inline int deepum_kmod_map(int fd, void *start, uint64_t bytes)
{
	void *place = mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
			   (off_t)(uintptr_t)start);

	return place == MAP_FAILED ? -errno : 0;
}

/* Ordinary memory in a block's place; with its contents, if they are to be kept. */
static inline int deepum_kmod_settle(void *start, uint64_t bytes, int keep)
{
	void *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (place == MAP_FAILED)
		return -errno;
	if (keep)
		memcpy(place, start, bytes);
	if (mremap(place, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, start) == MAP_FAILED) {
		munmap(place, bytes);
		return -errno;
	}
	return 0;
}

#endif

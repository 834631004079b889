/* SPDX-License-Identifier: Apache-2.0 */
/*
 * userfaultfd and the memory calls around it, as small functions that return
 * 0 or a negative errno. What newer kernels added is defined here, so that the
 * build does not depend on how old the machine's headers are.
 */
#ifndef DEEPUM_UFFD_H
#define DEEPUM_UFFD_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <linux/userfaultfd.h>

#define DEEPUM_BLOCK_BYTES ((uint64_t)1 << 21)

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* How long a fault waits for a migration thread that does not come back. */
#ifndef DEEPUM_STALL_MS
#define DEEPUM_STALL_MS 1000
#endif

/* Linux 6.8 */
#define DEEPUM_FEATURE_MOVE ((uint64_t)1 << 16)
struct deepum_uffdio_move {
	uint64_t dst, src, len, mode;
	int64_t move;
};
#define DEEPUM_UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct deepum_uffdio_move)
#define DEEPUM_DONTWAKE ((uint64_t)1)

/* Open a userfaultfd for faults in user mode; needs no privilege (Linux 5.11). */
static inline int deepum_uffd_open(uint64_t *features)
{
	struct uffdio_api api;
	int error, fd;

	fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	if (fd < 0)
		return -errno;
	memset(&api, 0, sizeof(api));
	api.api = UFFD_API;
	if (ioctl(fd, UFFDIO_API, &api)) {
		error = errno;
		close(fd);
		return -error;
	}
	*features = api.features;
	if (!(api.features & UFFD_FEATURE_PAGEFAULT_FLAG_WP)) {
		close(fd);
		return -EOPNOTSUPP;
	}
	return fd;
}

static inline int deepum_uffd_register(int fd, void *start, uint64_t bytes, int protect)
{
	struct uffdio_register r;

	memset(&r, 0, sizeof(r));
	r.range.start = (uintptr_t)start;
	r.range.len = bytes;
	r.mode = UFFDIO_REGISTER_MODE_MISSING | (protect ? UFFDIO_REGISTER_MODE_WP : 0);
	return ioctl(fd, UFFDIO_REGISTER, &r) ? -errno : 0;
}

static inline int deepum_uffd_unregister(int fd, void *start, uint64_t bytes)
{
	struct uffdio_range r = { (uintptr_t)start, bytes };

	return ioctl(fd, UFFDIO_UNREGISTER, &r) ? -errno : 0;
}

static inline int deepum_uffd_wake(int fd, void *start, uint64_t bytes)
{
	struct uffdio_range r = { (uintptr_t)start, bytes };

	return ioctl(fd, UFFDIO_WAKE, &r) ? -errno : 0;
}

/* Forbid or allow writing to pages that are there; allowing wakes who waits. */
static inline int deepum_uffd_protect(int fd, void *start, uint64_t bytes, int on)
{
	struct uffdio_writeprotect w;
	int tries;

	memset(&w, 0, sizeof(w));
	w.range.start = (uintptr_t)start;
	w.range.len = bytes;
	w.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0;
	for (tries = 0; tries < 1000; tries++) {
		if (!ioctl(fd, UFFDIO_WRITEPROTECT, &w))
			return 0;
		if (errno != EAGAIN)
			break;
	}
	return -errno;
}

/*
 * Move pages, or copy them, from where `done` says on: both may end after a
 * part. Nobody is woken. A page that somebody holds for a moment is tried
 * again; one that is written to by a device stays where it is (EBUSY).
 */
static inline int deepum_uffd_move(int fd, void *to, void *from, uint64_t bytes, uint64_t *done)
{
	struct deepum_uffdio_move m;
	int tries = 0;

	while (*done < bytes) {
		memset(&m, 0, sizeof(m));
		m.dst = (uintptr_t)to + *done;
		m.src = (uintptr_t)from + *done;
		m.len = bytes - *done;
		m.mode = DEEPUM_DONTWAKE;
		if (!ioctl(fd, DEEPUM_UFFDIO_MOVE, &m)) {
			*done = bytes;
		} else if (m.move > 0) {
			*done += (uint64_t)m.move;
			tries = 0;
		} else if ((errno != EAGAIN && errno != EBUSY) || ++tries == 50) {
			return -errno;
		} else {
			usleep(10);
		}
	}
	return 0;
}

static inline int deepum_uffd_copy(int fd, void *to, void *from, uint64_t bytes, uint64_t *done)
{
	struct uffdio_copy c;
	int tries = 0;

	while (*done < bytes) {
		memset(&c, 0, sizeof(c));
		c.dst = (uintptr_t)to + *done;
		c.src = (uintptr_t)from + *done;
		c.len = bytes - *done;
		c.mode = UFFDIO_COPY_MODE_DONTWAKE;
		if (!ioctl(fd, UFFDIO_COPY, &c)) {
			*done = bytes;
		} else if (c.copy > 0) {
			*done += (uint64_t)c.copy;
			tries = 0;
		} else if (errno != EAGAIN || ++tries == 50) {
			return -errno;
		} else {
			usleep(10);
		}
	}
	return 0;
}

/* Read the addresses of up to 64 faults; returns how many. */
static inline int deepum_uffd_read(int fd, uint64_t *addresses)
{
	struct uffd_msg messages[64];
	ssize_t got = read(fd, messages, sizeof(messages));
	int i, count = 0;

	for (i = 0; got > 0 && i < (int)(got / (ssize_t)sizeof(messages[0])); i++)
		if (messages[i].event == UFFD_EVENT_PAGEFAULT)
			addresses[count++] = messages[i].arg.pagefault.address;
	return count;
}

/*
 * Reserve addresses, aligned to blocks, without memory behind them. A child
 * process does not inherit them: its writes must not reach, nor its copies
 * pin, what belongs to the parent.
 */
static inline void *deepum_reserve(uint64_t bytes)
{
	uint64_t whole = bytes + DEEPUM_BLOCK_BYTES;
	char *p = mmap(NULL, whole, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *start;

	if (p == MAP_FAILED)
		return NULL;
	start = (char *)(((uintptr_t)p + DEEPUM_BLOCK_BYTES - 1) & ~(uintptr_t)(DEEPUM_BLOCK_BYTES - 1));
	if (start > p)
		munmap(p, (size_t)(start - p));
	if (start + bytes < p + whole)
		munmap(start + bytes, (size_t)(p + whole - (start + bytes)));
	if (madvise(start, bytes, MADV_DONTFORK)) {
		munmap(start, bytes);
		return NULL;
	}
	madvise(start, bytes, MADV_HUGEPAGE); /* a wish: without it moves take longer */
	return start;
}

/* Make reserved addresses usable; with `populate`, put memory behind them now. */
static inline int deepum_commit(void *start, uint64_t bytes, int populate)
{
	uint64_t i;

	if (mprotect(start, bytes, PROT_READ | PROT_WRITE))
		return -errno;
	if (!populate || !bytes)
		return 0;
	if (!madvise(start, bytes, MADV_POPULATE_WRITE))
		return 0;
	if (errno != EINVAL)
		return -errno;
	for (i = 0; i < bytes; i += 4096) /* before Linux 5.14 */
		((volatile char *)start)[i] = 0;
	return 0;
}

/* The last resort: end the process rather than let it go on with wrong data. */
static inline int deepum_die(const char *text, int error)
{
	char line[200];
	int size = snprintf(line, sizeof(line), "%s: %s\n", text, strerror(error));

	if (write(STDERR_FILENO, line, (size_t)size) < 0)
		size = 0;
	return kill(getpid(), SIGBUS);
}

static inline uint64_t deepum_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif

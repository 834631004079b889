// SPDX-License-Identifier: GPL-2.0
/* Requests: what is taken, what is refused and how. */
#include "device.h"

#include <poll.h>
#include <sys/eventfd.h>

#define REFUSED(expression, number)           \
	do {                                  \
		errno = 0;                    \
		CHECK_EQUAL(expression, -1);  \
		CHECK_EQUAL(errno, number);   \
	} while (0)

TEST(features)
{
	struct deepum_features f = { .size = sizeof(f) };
	int fd = open(DEVICE, O_RDWR);

	CHECK_EQUAL(ioctl(fd, DEEPUM_IOC_FEATURES, &f), 0);
	CHECK(f.features & DEEPUM_FEATURE_TOUCH);
	CHECK(f.features & DEEPUM_FEATURE_DROP_INACTIVE);
	CHECK(f.features & DEEPUM_FEATURE_UVM);
	CHECK_EQUAL(f.requests, 0xFF);
	CHECK_EQUAL(f.space_bytes, 1LL << 53);
	f.flags = 1;
	REFUSED(ioctl(fd, DEEPUM_IOC_FEATURES, &f), EINVAL);
	close(fd);
}

TEST(setup_is_checked)
{
	int fd = open(DEVICE, O_RDWR);
	struct deepum_stats s = { .size = sizeof(s) };
	struct deepum_setup flagged = { .size = sizeof(flagged), .flags = 1, .frames = 8 };

	REFUSED(ioctl(fd, DEEPUM_IOC_STATS, &s), ENXIO);
	CHECK(mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ENXIO);
	REFUSED(setup(fd, DEEPUM_MIN_FRAMES - 1, 64, 0), EINVAL);
	REFUSED(setup(fd, DEEPUM_MAX_FRAMES + 1, 64, 0), EINVAL);
	REFUSED(setup(fd, 8, 63, 0), EINVAL);
	REFUSED(setup(fd, 8, 32, 0), EINVAL);
	REFUSED(setup(fd, 8, 2 * DEEPUM_MAX_RING, 0), EINVAL);
	REFUSED(setup(fd, 8, 64, 1ULL << 63), EINVAL);
	REFUSED(ioctl(fd, DEEPUM_IOC_SETUP, &flagged), EINVAL);
	REFUSED(setup(fd, DEEPUM_MAX_FRAMES, 64, 0), ENOMEM);
	CHECK_EQUAL(setup(fd, 8, 64, 0), 0);
	REFUSED(setup(fd, 8, 64, 0), EBUSY);
	CHECK_EQUAL(ioctl(fd, DEEPUM_IOC_STATS, &s), 0);
	CHECK_EQUAL(s.frames, 8);
	CHECK_EQUAL(s.frames_free, 8);
	close(fd);
}

TEST(structures_may_grow)
{
	struct {
		struct deepum_stats known;
		uint64_t later[4];
	} s = { .known.size = sizeof(s) };
	struct device d = device_open(1, 4, 64, 0);

	CHECK_EQUAL(ioctl(d.fd, _IOC(_IOC_READ | _IOC_WRITE, DEEPUM_IOC_MAGIC, 6, sizeof(s)), &s), 0);
	CHECK_EQUAL(s.known.frames, 4);
	s.later[3] = 1;
	REFUSED(ioctl(d.fd, DEEPUM_IOC_STATS, &s), E2BIG);
	s.known.size = 1 << 20;
	REFUSED(ioctl(d.fd, DEEPUM_IOC_STATS, &s), E2BIG);
	s.known.size = sizeof(s.known) - 8;
	REFUSED(ioctl(d.fd, DEEPUM_IOC_STATS, &s), EINVAL);
	s.known.size = sizeof(s.known);
	s.known.flags = 1;
	REFUSED(ioctl(d.fd, DEEPUM_IOC_STATS, &s), EINVAL);
	REFUSED(ioctl(d.fd, DEEPUM_IOC_STATS, NULL), EFAULT);
	device_close(&d);
}

TEST(unknown_requests)
{
	struct device d = device_open(1, 4, 64, 0);
	uint32_t size = 64;

	REFUSED(ioctl(d.fd, _IO(DEEPUM_IOC_MAGIC, 0x7F), &size), ENOTTY);
	REFUSED(ioctl(d.fd, _IOW(DEEPUM_IOC_MAGIC, 8, uint64_t), &size), ENOTTY);
	REFUSED(ioctl(d.fd, _IOR(DEEPUM_IOC_MAGIC, 6, struct deepum_stats), &size), ENOTTY);
	REFUSED(ioctl(d.fd, _IOWR('U', 6, struct deepum_stats), &size), ENOTTY);
	device_close(&d);
}

TEST(commands_are_checked)
{
	struct device d = device_open(4, 4, 64, 0);
	const struct deepum_command good = { .type = DEEPUM_COMMAND_PREFETCH, .count = 1 };
	struct deepum_batch flagged = { .size = sizeof(flagged), .flags = 4 };
	struct deepum_command c[2] = { good, good };

#define BAD(field, value)                                               \
	do {                                                            \
		c[0] = good;                                            \
		c[0].field = (value);                                   \
		REFUSED(submit(d.fd, c, 1, DEEPUM_SUBMIT_WAIT), EINVAL); \
	} while (0)
	BAD(type, 0);
	BAD(type, 4);
	BAD(device, 1);
	BAD(tier, 1);
	BAD(flags, 4);
	BAD(reserved, 1);
	BAD(count, 0);
	BAD(count, 5); /* more than there are frames */
	BAD(block, 1ULL << 32);
	BAD(block, ~0ULL);
	c[0] = (struct deepum_command){ .type = DEEPUM_COMMAND_EVICT, .block = (1ULL << 32) - 1,
					.count = 2 };
	REFUSED(submit(d.fd, c, 1, 0), EINVAL);
	REFUSED(submit(d.fd, c, DEEPUM_MAX_BATCH + 1, 0), EINVAL);
	REFUSED(submit(d.fd, NULL, 1, 0), EFAULT);
	REFUSED(ioctl(d.fd, DEEPUM_IOC_SUBMIT, &flagged), EINVAL);
	flagged.flags = 0;
	flagged.done = 1;
	REFUSED(ioctl(d.fd, DEEPUM_IOC_SUBMIT, &flagged), EINVAL);

	/* What comes before a bad one is taken. */
	struct deepum_batch batch = { .size = sizeof(batch), .count = 2,
				      .flags = DEEPUM_SUBMIT_WAIT, .records = (uintptr_t)c };
	c[0] = good;
	c[1] = good;
	c[1].type = 9;
	REFUSED(ioctl(d.fd, DEEPUM_IOC_SUBMIT, &batch), EINVAL);
	CHECK_EQUAL(batch.done, 1);
	CHECK_EQUAL(submit(d.fd, NULL, 0, DEEPUM_SUBMIT_WAIT), 0);
	CHECK_EQUAL(state(&d, 0), DEEPUM_STATE_RESIDENT);
	device_close(&d);
}

TEST(events_are_checked)
{
	struct device d = device_open(4, 4, 64, 0);
	const struct deepum_event good = { .type = DEEPUM_EVENT_ALLOC, .bytes = 1 };
	struct deepum_event e;

#define BAD_EVENT(field, value)                        \
	do {                                           \
		e = good;                              \
		e.field = (value);                     \
		REFUSED(notify(d.fd, &e, 1), EINVAL);  \
	} while (0)
	BAD_EVENT(type, 0);
	BAD_EVENT(type, DEEPUM_EVENT_FAULT);
	BAD_EVENT(type, DEEPUM_EVENT_DEPARTED);
	BAD_EVENT(device, 1);
	BAD_EVENT(tier, 1);
	BAD_EVENT(flags, 1);
	BAD_EVENT(time_ns, 1);
	BAD_EVENT(reserved, 1);
	BAD_EVENT(bytes, 0);
	BAD_EVENT(bytes, (1ULL << 53) + 1);
	BAD_EVENT(address, 1ULL << 53);
	BAD_EVENT(seq, 1);
	BAD_EVENT(exec_id, 1);
	e = (struct deepum_event){ .type = DEEPUM_EVENT_COMPLETE, .seq = 1 };
	REFUSED(notify(d.fd, &e, 1), EINVAL); /* nothing was launched */
	e = (struct deepum_event){ .type = DEEPUM_EVENT_LAUNCH, .seq = 2 };
	REFUSED(notify(d.fd, &e, 1), EINVAL); /* the next one is 1 */
	e.seq = 1;
	CHECK_EQUAL(notify(d.fd, &e, 1), 1);
	device_close(&d);
}

TEST(launches_are_bounded)
{
	struct device d = device_open(1, 4, 64, 0);
	struct deepum_event e = { .type = DEEPUM_EVENT_LAUNCH, .exec_id = 7 };
	int i;

	for (i = 0; i < DEEPUM_MAX_LAUNCHES; i++)
		CHECK_EQUAL(notify(d.fd, &e, 1), 1);
	REFUSED(notify(d.fd, &e, 1), EAGAIN);
	e = (struct deepum_event){ .type = DEEPUM_EVENT_COMPLETE, .seq = 1 };
	CHECK_EQUAL(notify(d.fd, &e, 1), 1);
	e = (struct deepum_event){ .type = DEEPUM_EVENT_LAUNCH, .exec_id = 7 };
	CHECK_EQUAL(notify(d.fd, &e, 1), 1);
	CHECK_EQUAL(stats(&d).launched, DEEPUM_MAX_LAUNCHES + 1);
	CHECK_EQUAL(stats(&d).completed, 1);
	device_close(&d);
}

TEST(mappings_are_checked)
{
	struct device d = device_open(1, 4, 64, 0);
	int read_only = open(DEVICE, O_RDONLY);

	CHECK(mmap(NULL, BLOCK, PROT_READ, MAP_PRIVATE, d.fd, 0) == MAP_FAILED && errno == EINVAL);
	CHECK(mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, d.fd, 1LL << 53) == MAP_FAILED &&
	      errno == EINVAL);
	CHECK(mmap(NULL, 2 * BLOCK, PROT_READ, MAP_SHARED, d.fd, (1LL << 53) - BLOCK) ==
	      MAP_FAILED);
	CHECK(mmap(NULL, 1 << 20, PROT_READ, MAP_SHARED, d.fd, DEEPUM_MMAP_RING) == MAP_FAILED);
	CHECK_EQUAL(setup(read_only, 4, 64, 0), 0);
	CHECK(mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, read_only, 0) == MAP_FAILED);
	close(read_only);

	/* The far end of an 8 PiB space works like any other place. */
	uint8_t *far = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, d.fd,
			    (1LL << 53) - BLOCK);
	CHECK(far != MAP_FAILED);
	far[5] = 6;
	CHECK_EQUAL(state(&d, (1ULL << 32) - 1), DEEPUM_STATE_RESIDENT);
	CHECK_EQUAL(command(&d, DEEPUM_COMMAND_EVICT, (1ULL << 32) - 1, 1), 1);
	CHECK_EQUAL(far[5], 6);
	munmap(far, BLOCK);
	device_close(&d);
}

TEST(residency_is_checked)
{
	struct device d = device_open(4, 4, 64, 0);
	uint8_t states[600];
	struct deepum_residency r = { .size = sizeof(r), .block = 0, .count = 600,
				      .states = (uintptr_t)states };

	d.space[2 * BLOCK] = 1;
	CHECK_EQUAL(ioctl(d.fd, DEEPUM_IOC_RESIDENCY, &r), 0);
	CHECK_EQUAL(states[2], DEEPUM_STATE_RESIDENT | DEEPUM_STATE_DIRTY);
	CHECK_EQUAL(states[3], 0);
	CHECK_EQUAL(states[599], 0);
	r.reserved = 1;
	REFUSED(ioctl(d.fd, DEEPUM_IOC_RESIDENCY, &r), EINVAL);
	r.reserved = 0;
	r.block = 1ULL << 32;
	REFUSED(ioctl(d.fd, DEEPUM_IOC_RESIDENCY, &r), EINVAL);
	r.block = 0;
	r.states = 8;
	REFUSED(ioctl(d.fd, DEEPUM_IOC_RESIDENCY, &r), EFAULT);
	device_close(&d);
}

TEST(poll_and_eventfd)
{
	struct device d = device_open(4, 4, 64, 0);
	int efd = eventfd(0, EFD_NONBLOCK);
	struct deepum_eventfd request = { .size = sizeof(request), .fd = efd };
	struct pollfd p = { .fd = d.fd, .events = POLLIN };
	uint64_t count = 0;

	CHECK_EQUAL(poll(&p, 1, 0), 0);
	request.flags = 1;
	REFUSED(ioctl(d.fd, DEEPUM_IOC_EVENTFD, &request), EINVAL);
	request.flags = 0;
	request.fd = d.fd;
	REFUSED(ioctl(d.fd, DEEPUM_IOC_EVENTFD, &request), EINVAL);
	request.fd = -2;
	REFUSED(ioctl(d.fd, DEEPUM_IOC_EVENTFD, &request), EBADF);
	request.fd = efd;
	CHECK_EQUAL(ioctl(d.fd, DEEPUM_IOC_EVENTFD, &request), 0);

	d.space[0] = 1;
	CHECK_EQUAL(poll(&p, 1, 1000), 1);
	CHECK_EQUAL(p.revents, POLLIN);
	CHECK_EQUAL(read(efd, &count, 8), 8);
	CHECK_EQUAL(count, 1); /* once while the ring is not empty, however many come */
	d.space[BLOCK] = 1;
	CHECK_EQUAL(read(efd, &count, 8), -1);
	while (next_event(&d).type)
		;
	CHECK_EQUAL(poll(&p, 1, 0), 0);
	d.space[2 * BLOCK] = 1;
	CHECK_EQUAL(read(efd, &count, 8), 8);
	request.fd = -1;
	CHECK_EQUAL(ioctl(d.fd, DEEPUM_IOC_EVENTFD, &request), 0);
	while (next_event(&d).type)
		;
	d.space[3 * BLOCK] = 1;
	CHECK_EQUAL(read(efd, &count, 8), -1);
	close(efd);
	device_close(&d);
}

TAP_MAIN(T(features), T(setup_is_checked), T(structures_may_grow), T(unknown_requests),
	 T(commands_are_checked), T(events_are_checked), T(launches_are_bounded),
	 T(mappings_are_checked), T(residency_is_checked), T(poll_and_eventfd))

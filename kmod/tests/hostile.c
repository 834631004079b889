// SPDX-License-Identifier: GPL-2.0
/*
 * Hostile use: random and malformed requests, mappings, unmappings, forks, closes and ring
 * corruptions, from several threads and from processes that crash, beside a program that keeps
 * its data and checks it.
 *
 *   hostile [OPERATIONS [SEED]]
 *
 * With FAILING set, allocations of the attackers' fail where the kernel lets them (make-it-fail).
 */
#include "device.h"

#include <pthread.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#define THREADS 4
#define FILES 6
#define MAPPINGS 6
#define SMALL_SPACE 24
#define ROOM (16 * BLOCK) /* addresses for one mapping */

static long operations = 1000000;
static unsigned int first_seed = 1;
static int files[FILES]; /* shared by all threads: closed under each other's feet */
static volatile long done;

/* Mappings lie in a room of their own, so that threads do not unmap each other's stacks. */
struct attacker {
	uint64_t random;
	uint8_t *room;
	uint8_t *mapping[MAPPINGS];
	size_t size[MAPPINGS];
	struct deepum_ring *ring;
	volatile int safe; /* to fault: `out` leads somewhere */
	sigjmp_buf out;
};

static __thread struct attacker *self;

static void caught(int signal)
{
	(void)signal;
	if (self && self->safe)
		siglongjmp(self->out, 1);
	_exit(9);
}

static uint64_t next(struct attacker *a)
{
	a->random ^= a->random << 13;
	a->random ^= a->random >> 7;
	a->random ^= a->random << 17;
	return a->random;
}

static uint64_t below(struct attacker *a, uint64_t end)
{
	return next(a) % end;
}

/* Mostly a block that is there, now and then any number at all. */
static uint64_t some_block(struct attacker *a)
{
	return below(a, 64) ? below(a, SMALL_SPACE) : next(a) >> below(a, 64);
}

static int some_file(struct attacker *a)
{
	return __atomic_load_n(&files[below(a, FILES)], __ATOMIC_RELAXED);
}

/* Change a few bytes of a good structure, or none. */
static void mutate(struct attacker *a, void *data, size_t size)
{
	uint8_t *bytes = data;
	int n = below(a, 3) ? 0 : 1 + below(a, 3);

	while (n--)
		bytes[below(a, size)] = next(a);
}

static void *some_pointer(struct attacker *a, void *good)
{
	switch (below(a, 24)) {
	case 0:
		return NULL;
	case 1:
		return (void *)next(a);
	case 2: /* memory that the module itself serves */
		return a->mapping[below(a, MAPPINGS)];
	default:
		return good;
	}
}

static void commands(struct attacker *a)
{
	struct deepum_command c[4];
	struct deepum_batch batch = { .size = sizeof(batch), .count = below(a, 5),
				      .flags = below(a, 16) ? 0 : DEEPUM_SUBMIT_WAIT };
	unsigned int i;

	for (i = 0; i < 4; i++) {
		c[i] = (struct deepum_command){ .type = 1 + below(a, 3), .block = some_block(a),
						.count = 1 + below(a, 2),
						.flags = below(a, 4) };
		if (!below(a, 32))
			mutate(a, &c[i], sizeof(c[i]));
	}
	batch.records = (uintptr_t)some_pointer(a, c);
	mutate(a, &batch, sizeof(batch));
	ioctl(some_file(a), DEEPUM_IOC_SUBMIT, &batch);
}

static void notices(struct attacker *a)
{
	struct deepum_event e[6];
	struct deepum_batch batch = { .size = sizeof(batch), .count = below(a, 7) };
	unsigned int i;

	for (i = 0; i < 6; i++) {
		memset(&e[i], 0, sizeof(e[i]));
		e[i].type = 1 + below(a, 7);
		switch (e[i].type) {
		case DEEPUM_EVENT_LAUNCH:
			e[i].exec_id = next(a);
			break;
		case DEEPUM_EVENT_COMPLETE:
			e[i].seq = below(a, 5000);
			break;
		default:
			e[i].address = below(a, SMALL_SPACE) * BLOCK + below(a, 3) * 4096;
			e[i].bytes = 1 + below(a, 3 * BLOCK);
		}
		if (!below(a, 64)) /* a range of any size rarely: setting it aside takes long */
			mutate(a, &e[i], below(a, 200) ? 24 : sizeof(e[i]));
	}
	batch.records = (uintptr_t)some_pointer(a, e);
	mutate(a, &batch, sizeof(batch));
	ioctl(some_file(a), DEEPUM_IOC_NOTIFY, &batch);
}

static void questions(struct attacker *a)
{
	uint8_t states[64];
	struct deepum_residency r = { .size = sizeof(r), .block = some_block(a),
				      .count = below(a, 64),
				      .states = (uintptr_t)some_pointer(a, states) };
	struct deepum_stats s = { .size = sizeof(s) };
	struct deepum_features f = { .size = sizeof(f) };
	struct deepum_eventfd e = { .size = sizeof(e), .fd = (int)below(a, 40) - 1 };

	mutate(a, &r, 16); /* not the count: no time for 2^32 */
	mutate(a, &s, sizeof(s));
	mutate(a, &f, sizeof(f));
	mutate(a, &e, sizeof(e));
	ioctl(some_file(a), DEEPUM_IOC_RESIDENCY, &r);
	ioctl(some_file(a), DEEPUM_IOC_STATS, some_pointer(a, &s));
	ioctl(some_file(a), DEEPUM_IOC_FEATURES, some_pointer(a, &f));
	ioctl(some_file(a), DEEPUM_IOC_EVENTFD, &e);
}

static void rubbish(struct attacker *a)
{
	uint64_t words[64];
	unsigned int i;

	for (i = 0; i < 64; i++)
		words[i] = next(a) >> below(a, 64);
	if (below(a, 2))
		((uint32_t *)words)[0] = 8 + below(a, 300);
	ioctl(some_file(a), _IOC(below(a, 4), DEEPUM_IOC_MAGIC, below(a, 10), below(a, 4096)),
	      some_pointer(a, words));
	ioctl(some_file(a), (unsigned int)next(a), some_pointer(a, words));
}

static void start_context(struct attacker *a, int fd)
{
	struct deepum_setup s = { .size = sizeof(s), .frames = 4 + below(a, 6),
				  .ring_events = 64, .features = below(a, 4),
				  .patience_us = below(a, 8) ? 0 : 200 };

	if (!below(a, 4))
		mutate(a, &s, sizeof(s) - 8);
	if (s.frames > 64) /* a great many frames are a test of their own */
		s.frames = 64;
	ioctl(fd, DEEPUM_IOC_SETUP, &s);
}

static void reopen(struct attacker *a)
{
	int i = below(a, FILES);
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return;
	start_context(a, fd);
	/* The number may be in use elsewhere at this moment: that is the point. */
	fd = __atomic_exchange_n(&files[i], fd, __ATOMIC_RELAXED);
	close(fd);
}

static uint8_t *room_for(struct attacker *a, int i)
{
	return a->room + i * ROOM + BLOCK;
}

static void unmap(void *memory, size_t size)
{
	mmap(memory, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
	     0);
}

static void map(struct attacker *a)
{
	int i = below(a, MAPPINGS);
	size_t size = (1 + below(a, 6)) * (below(a, 3) ? BLOCK : 4096);
	off_t offset = below(a, SMALL_SPACE) * BLOCK;
	int protection = below(a, 4) ? PROT_READ | PROT_WRITE : PROT_READ;
	void *memory;

	if (!below(a, 16))
		offset = next(a) >> below(a, 64);
	if (!below(a, 3))
		offset += below(a, 512) * 4096;
	unmap(room_for(a, i) - BLOCK, ROOM);
	memory = mmap(room_for(a, i) + (below(a, 3) ? 0 : below(a, 512) * 4096), size, protection,
		      (below(a, 16) ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED, some_file(a),
		      offset & ~4095L);
	a->mapping[i] = memory == MAP_FAILED ? NULL : memory;
	a->size[i] = size;
}

static void remap(struct attacker *a)
{
	int i = below(a, MAPPINGS);
	size_t at = below(a, a->size[i] / 4096 + 1) * 4096;
	size_t length = (1 + below(a, 600)) * 4096;
	void *memory;

	if (!a->mapping[i] || at >= a->size[i])
		return;
	if (length > a->size[i] - at)
		length = a->size[i] - at;
	switch (below(a, 5)) {
	case 0:
		unmap(a->mapping[i] + at, length);
		break;
	case 1:
		mprotect(a->mapping[i] + at, length,
			 below(a, 2) ? PROT_READ : PROT_READ | PROT_WRITE);
		break;
	case 2:
		madvise(a->mapping[i] + at, length, below(a, 26));
		break;
	case 3:
		mlock(a->mapping[i] + at, length);
		munlock(a->mapping[i] + at, length);
		break;
	default:
		memory = mremap(a->mapping[i], a->size[i], a->size[i] + below(a, 2) * 4096,
				MREMAP_MAYMOVE | MREMAP_FIXED,
				room_for(a, i) - BLOCK + (a->mapping[i] < room_for(a, i) ?
							  8 * BLOCK : 0));
		if (memory != MAP_FAILED)
			a->mapping[i] = memory;
	}
}

static void touch(struct attacker *a)
{
	int i = below(a, MAPPINGS);
	volatile uint8_t *byte;

	if (!a->mapping[i])
		return;
	byte = a->mapping[i] + below(a, a->size[i]);
	if (sigsetjmp(a->out, 1) == 0) {
		a->safe = 1;
		if (below(a, 2))
			*byte = next(a);
		else
			(void)*byte;
	}
	a->safe = 0;
}

static void scribble(struct attacker *a)
{
	size_t size = DEEPUM_RING_EVENTS + 64 * sizeof(struct deepum_event), i;
	void *room = a->room + MAPPINGS * ROOM;

	if (!a->ring || !below(a, 50)) {
		unmap(room, BLOCK);
		a->ring = mmap(room, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
			       some_file(a), DEEPUM_MMAP_RING);
		if ((void *)a->ring == MAP_FAILED)
			a->ring = NULL;
	}
	if (!a->ring)
		return;
	a->ring->tail = below(a, 2) ? a->ring->head : next(a);
	if (!below(a, 3))
		for (i = 0; i < 8; i++)
			((uint64_t *)a->ring)[below(a, 520)] = next(a);
}

static void leave_a_child(struct attacker *a)
{
	pid_t child = fork();
	int i;

	if (!child) {
		signal(SIGALRM, SIG_DFL);
		alarm(20);
		for (i = 0; i < 20; i++) {
			commands(a);
			notices(a);
			map(a);
		}
		if (below(a, 2))
			*(volatile int *)8 = 1; /* a policy that crashes */
		kill(getpid(), SIGKILL);
	}
	if (child > 0)
		waitpid(child, NULL, 0);
}

static void wait_for_events(struct attacker *a)
{
	struct pollfd p = { .fd = some_file(a), .events = POLLIN };

	poll(&p, 1, 0);
}

static void let_allocations_fail(void)
{
	int fd = open("/proc/thread-self/make-it-fail", O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, "1", 1) != 1)
		_exit(8);
	close(fd);
}

static void *attack(void *argument)
{
	struct attacker *a = argument;
	void (*const usual[])(struct attacker *) = { rubbish, questions, scribble, wait_for_events };

	self = a;
	if (getenv("FAILING"))
		let_allocations_fail();
	while (__atomic_add_fetch(&done, 1, __ATOMIC_RELAXED) <= operations) {
		uint64_t kind = below(a, 4000);

		/* What moves data or clears memory takes a hundred times as long as the rest. */
		if (kind < 2)
			leave_a_child(a);
		else if (kind < 8)
			reopen(a);
		else if (kind < 28)
			map(a);
		else if (kind < 48)
			remap(a);
		else if (kind < 78)
			touch(a);
		else if (kind < 118)
			commands(a);
		else if (kind < 158)
			notices(a);
		else
			usual[kind % 4](a);
	}
	return NULL;
}

/* The program beside them: twelve blocks in six frames, written and read again and again. */
static int bystander(int stop)
{
	struct device d = device_open(12, 6, 64, 0);
	struct pollfd p = { .fd = stop, .events = POLLIN };
	uint64_t round = 0;
	int i;

	for (i = 0; i < 12; i++)
		fill(&d, i, i);
	for (; !poll(&p, 1, 20); round++) {
		i = round % 12;
		CHECK(holds(&d, i, round < 12 ? (uint64_t)i : round - 12));
		fill(&d, i, round);
	}
	printf("# the program beside them checked its data %llu times\n",
	       (unsigned long long)round);
	for (i = 0; i < 12; i++)
		CHECK(holds(&d, (round + i) % 12,
			    round + i < 12 ? (round + i) % 12 : round + i - 12));
	device_close(&d);
	return 0;
}

static void attack_all(unsigned int seed)
{
	static struct attacker attackers[THREADS];
	pthread_t threads[THREADS];
	struct sigaction action = { .sa_handler = caught };
	int i;

	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	for (i = 0; i < FILES; i++)
		files[i] = -1;
	for (i = 0; i < THREADS; i++) {
		attackers[i].random = 0x9E3779B97F4A7C15u * (seed + i) | 1;
		attackers[i].room = mmap(NULL, MAPPINGS * ROOM + 2 * BLOCK, PROT_NONE,
					 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		attackers[i].room += BLOCK - (uintptr_t)attackers[i].room % BLOCK;
		if (pthread_create(&threads[i], NULL, attack, &attackers[i]))
			exit(1);
	}
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

static void attack_from_a_process(unsigned int seed)
{
	pid_t attackers = fork();
	int status = 0;

	if (!attackers) {
		attack_all(seed);
		_exit(0);
	}
	CHECK_EQUAL(waitpid(attackers, &status, 0), attackers);
	CHECK_EQUAL(status, 0);
}

TEST(nothing_breaks_and_nothing_leaks)
{
	int stop[2], status = 0;
	long before, after, all = operations;
	pid_t beside;

	CHECK_EQUAL(pipe(stop), 0);
	/* What the allocators keep at hand from now on is not a leak. */
	operations = all / 20;
	attack_from_a_process(first_seed + 1000);
	operations = all - operations;
	before = available_kib();
	beside = fork();
	if (!beside) {
		if (setjmp(tap_out))
			_exit(1);
		_exit(bystander(stop[0]));
	}
	attack_from_a_process(first_seed);
	CHECK_EQUAL(write(stop[1], "x", 1), 1);
	CHECK_EQUAL(waitpid(beside, &status, 0), beside);
	CHECK_EQUAL(status, 0);
	usleep(500000);
	after = available_kib();
	printf("# %ld operations; available memory before %ld, after %ld KiB\n", all, before,
	       after);
	/* A kernel that looks for leaks itself holds freed memory back for a while. */
	CHECK(after > before - (access("/sys/kernel/debug/kmemleak", F_OK) ? 8 : 64) * 1024);
}

int main(int argc, char **argv)
{
	static const struct tap_test tests[] = { T(nothing_breaks_and_nothing_leaks) };

	if (argc > 1)
		operations = atol(argv[1]);
	if (argc > 2)
		first_seed = atoi(argv[2]);
	return tap_run(tests, 1);
}

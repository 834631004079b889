// SPDX-License-Identifier: GPL-2.0
/*
 * Memory that runs out wherever the module asks for it. Of every request the first allocation
 * fails, then the second, until one run meets no failure. Each failure is ENOMEM or SIGBUS, or is
 * made up for; the same request succeeds afterwards, and nothing that was there is lost.
 *
 * A kernel with fault injection (kmod/qemu/debug.config) lets them fail, elsewhere a module does
 * (failing.ko); guest.sh limits both to what is asked for below a function of deepum's.
 */
#include "device.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>

#define STRIDE 64 /* blocks: each is the first of its node in the module's table */
#define SPACE 256 /* of them */
#define KEPT 4	  /* blocks with contents that have to stay */
#define INJECTION "/sys/kernel/debug/failslab"
#define FAILING "/sys/module/failing/parameters/"
#define MOCK "/run/modules/nvidia_uvm.ko"

static int nth_fd;
static long available_before;
static sigjmp_buf out;
static volatile sig_atomic_t in_touch;

/* What an attempt works on. */
struct bench {
	struct device d;
	volatile uint8_t *odd; /* the space again, at addresses that no huge entry can serve */
	uint64_t next;	       /* of the blocks that nobody has touched */
	int fd;
};

static void caught(int signal)
{
	(void)signal;
	if (!in_touch)
		_exit(9);
	siglongjmp(out, 1);
}

static void fail_at(unsigned int nth)
{
	char text[16];
	int length = snprintf(text, sizeof(text), "%u", nth);

	CHECK_EQUAL(pwrite(nth_fd, text, length, 0), length);
}

static int has_failed(void)
{
	char text[16] = "";

	CHECK(pread(nth_fd, text, sizeof(text) - 1, 0) > 0);
	fail_at(0);
	return atoi(text) == 0;
}

/*
 * Let the first, the second, ... allocation of `act` fail; `undo` makes the next attempt ask for
 * the same again. Returns how many of these failures were an error.
 */
static int with_failures(struct bench *b, int (*act)(struct bench *), void (*undo)(struct bench *))
{
	int nth, result, error, refused = 0;

	for (nth = 1;; nth++) {
		CHECK(nth < 1000);
		fail_at(nth);
		errno = 0;
		result = act(b);
		error = errno;
		if (!has_failed())
			break;
		if (result < 0) {
			CHECK_EQUAL(error, ENOMEM);
			refused++;
			CHECK(act(b) >= 0);
		}
		undo(b);
	}
	CHECK(result >= 0);
	CHECK(nth > 1);
	printf("# %d allocations failed, %d of them were an error\n", nth - 1, refused);
	return refused;
}

static struct bench start(void)
{
	struct bench b = { .d = device_open(SPACE * STRIDE, KEPT, 64, 0), .next = KEPT };
	uint8_t *place = mmap(NULL, (SPACE * STRIDE + 2) * BLOCK, PROT_NONE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int i;

	CHECK(place != MAP_FAILED);
	place += BLOCK - (uintptr_t)place % BLOCK + 4096;
	b.odd = mmap(place, SPACE * STRIDE * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		     b.d.fd, 0);
	CHECK(b.odd != MAP_FAILED);
	for (i = 0; i < KEPT; i++)
		fill(&b.d, i * STRIDE, i);
	return b;
}

static void end(struct bench *b)
{
	int i;

	for (i = 0; i < KEPT; i++)
		CHECK(holds(&b->d, i * STRIDE, i));
	munmap((void *)b->odd, SPACE * STRIDE * BLOCK);
	device_close(&b->d);
}

static int opens(struct bench *b)
{
	b->fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	return b->fd;
}

static void closes(struct bench *b)
{
	close(b->fd);
}

TEST(opening)
{
	struct bench b = { .fd = -1 };

	CHECK(with_failures(&b, opens, closes));
	close(b.fd);
}

static int sets_up(struct bench *b)
{
	return setup(b->fd, 4, 64, 0);
}

static void closes_and_opens(struct bench *b)
{
	volatile uint8_t *space = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);

	CHECK(space != MAP_FAILED); /* what was set up in the end works */
	*space = 1;
	munmap((void *)space, BLOCK);
	close(b->fd);
	CHECK(opens(b) >= 0);
}

TEST(setting_up)
{
	struct bench b = { .fd = open(DEVICE, O_RDWR | O_CLOEXEC) };

	CHECK(b.fd >= 0);
	CHECK(with_failures(&b, sets_up, closes_and_opens));
	close(b.fd);
}

static int touches(volatile uint8_t *byte, uint8_t value)
{
	int result = 0;

	in_touch = 1;
	if (sigsetjmp(out, 1) == 0) {
		*byte = value;
	} else {
		errno = ENOMEM;
		result = -1;
	}
	in_touch = 0;
	return result;
}

static int touches_a_block(struct bench *b)
{
	return touches(b->d.space + b->next * STRIDE * BLOCK, b->next);
}

static int touches_a_page(struct bench *b)
{
	return touches(b->odd + b->next * STRIDE * BLOCK, b->next);
}

static void goes_on(struct bench *b)
{
	CHECK(++b->next < SPACE);
}

static void check_touched(struct bench *b)
{
	uint64_t i;

	for (i = KEPT; i <= b->next; i++)
		CHECK_EQUAL(b->d.space[i * STRIDE * BLOCK], (uint8_t)i);
}

TEST(touching)
{
	struct bench b = start();

	CHECK(with_failures(&b, touches_a_block, goes_on));
	check_touched(&b);
	end(&b);
}

TEST(touching_single_pages)
{
	struct bench b = start();

	CHECK(with_failures(&b, touches_a_page, goes_on));
	check_touched(&b);
	end(&b);
}

static int prefetches(struct bench *b)
{
	return command(&b->d, DEEPUM_COMMAND_PREFETCH, b->next * STRIDE + STRIDE - 1, 2);
}

static void goes_two_on(struct bench *b)
{
	CHECK((b->next += 2) < SPACE);
}

TEST(prefetching)
{
	struct bench b = start();

	command(&b.d, DEEPUM_COMMAND_EVICT, 0, SPACE * STRIDE);
	CHECK(with_failures(&b, prefetches, goes_two_on));
	/* A batch says how far it came. */
	{
		struct deepum_command c[2] = {
			{ .type = DEEPUM_COMMAND_EVICT, .block = 0, .count = 1 },
			{ .type = DEEPUM_COMMAND_PREFETCH, .block = (SPACE - 1) * STRIDE, .count = 1 },
		};
		struct deepum_batch batch = { .size = sizeof(batch), .count = 2,
					      .records = (uintptr_t)c };

		fail_at(1);
		CHECK_EQUAL(ioctl(b.d.fd, DEEPUM_IOC_SUBMIT, &batch), -1);
		CHECK_EQUAL(errno, ENOMEM);
		CHECK(has_failed());
		CHECK_EQUAL(batch.done, 1);
	}
	end(&b);
}

static int sets_aside(struct bench *b)
{
	return note(&b->d, DEEPUM_EVENT_MANAGE, b->next * STRIDE * BLOCK, 2 * BLOCK);
}

TEST(setting_memory_aside)
{
	struct bench b = start();

	CHECK(with_failures(&b, sets_aside, goes_on));
	end(&b);
}

static void set(const char *file, const char *value)
{
	int fd = open(file, O_WRONLY);

	CHECK(fd >= 0);
	CHECK_EQUAL(write(fd, value, strlen(value)), strlen(value));
	close(fd);
}

static int observes(struct bench *b)
{
	struct deepum_uvm layout = {
		.size = sizeof(struct deepum_uvm),
		.event_fault = 5, .event_migration = 6, .cause_eviction = 4,
		.fault_processor = 8, .fault_entry = 16, .fault_cpu_address = 16,
		.fault_cpu_write = 28, .entry_address = 8, .entry_access_bit = 8 * 20 + 6,
		.entry_access_bits = 4, .access_write = 2, .migration_to = 16,
		.migration_from = 20, .migration_address = 24, .migration_bytes = 32,
		.migration_cause = 40, .data_bytes = 48,
	};

	int result = ioctl(b->d.fd, DEEPUM_IOC_UVM, &layout);

	/* Newer kernels say so when they have no memory to look for the function. */
	if (result < 0 && errno == ENOENT)
		errno = ENOMEM;
	return result;
}

/* Who was told that it observes sees what happens. */
static void looks_away(struct bench *b)
{
	struct deepum_uvm off = { .size = sizeof(off), .flags = DEEPUM_UVM_DETACH };
	struct deepum_event e = { 0 };
	int tries;

	while (next_event(&b->d).type)
		;
	set("/sys/module/nvidia_uvm/parameters/tell", "gpu 1 7f0000203000 2");
	for (tries = 0; !e.type && tries < 100; tries++, usleep(10000))
		e = next_event(&b->d);
	CHECK_EQUAL(e.type, DEEPUM_EVENT_FAULT);
	CHECK_EQUAL(e.address, 0x7f0000203000);
	CHECK_EQUAL(ioctl(b->d.fd, DEEPUM_IOC_UVM, &off), 0);
}

TEST(observing_a_driver)
{
	struct bench b = start();
	int fd = open(MOCK, O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	CHECK_EQUAL(syscall(SYS_finit_module, fd, "", 0), 0);
	close(fd);
	/* Kernels that set a breakpoint there can do without each allocation that fails. */
	with_failures(&b, observes, looks_away);
	looks_away(&b);
	CHECK_EQUAL(syscall(SYS_delete_module, "nvidia_uvm", O_NONBLOCK), 0);
	end(&b);
}

static void all_fail(int yes)
{
	if (!access(FAILING "all", F_OK)) {
		set(FAILING "all", yes ? "1" : "0");
		return;
	}
	set(INJECTION "/times", "-1");
	set("/sys/kernel/debug/fail_page_alloc/times", "-1");
	set(INJECTION "/probability", yes ? "100" : "0");
	set("/sys/kernel/debug/fail_page_alloc/probability", yes ? "100" : "0");
}

/* Every allocation below the module fails, in all threads: what has a place needs none. */
TEST(moving_needs_no_memory)
{
	struct bench b = start();
	struct deepum_stats before, after;
	int i, round, right = 1;

	for (i = KEPT; i < 3 * KEPT; i++)
		fill(&b.d, i * STRIDE, i);
	before = stats(&b.d);
	all_fail(1);
	for (round = 0; round < 3; round++) {
		command(&b.d, DEEPUM_COMMAND_EVICT, 0, SPACE * STRIDE);
		command(&b.d, DEEPUM_COMMAND_PREFETCH, round * STRIDE, 1);
		for (i = 0; i < 3 * KEPT; i++)
			right &= holds(&b.d, i * STRIDE, i + (i >= KEPT ? round : 0));
		for (i = KEPT; i < 3 * KEPT; i++)
			fill(&b.d, i * STRIDE, i + round + 1);
	}
	right &= touches(b.d.space + (SPACE - 1) * STRIDE * BLOCK, 1) < 0; /* it is in force */
	all_fail(0);
	after = stats(&b.d);
	CHECK(right);
	CHECK(after.copied_out > before.copied_out);
	CHECK(after.copied_in > before.copied_in);
	for (i = KEPT; i < 3 * KEPT; i++)
		CHECK(holds(&b.d, i * STRIDE, i + 3));
	end(&b);
}

TEST(nothing_leaked)
{
	long after;
	int tries;

	for (tries = 0; tries < 50 && available_kib() < available_before - 8 * 1024; tries++)
		usleep(100000); /* what is freed comes back a little later */
	after = available_kib();
	printf("# available memory before %ld, after %ld KiB\n", available_before, after);
	CHECK(after > available_before - (access("/sys/kernel/debug/kmemleak", F_OK) ? 8 : 64) * 1024);
}

int main(void)
{
	static const struct tap_test tests[] = {
		T(opening), T(setting_up), T(touching),
		T(touching_single_pages), T(prefetching), T(setting_memory_aside),
		T(observing_a_driver), T(moving_needs_no_memory), T(nothing_leaked),
	};
	struct sigaction action = { .sa_handler = caught };

	nth_fd = open(FAILING "nth", O_RDWR | O_CLOEXEC);
	if (nth_fd < 0 && !access(INJECTION, F_OK))
		nth_fd = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	if (nth_fd < 0) {
		printf("1..0 # SKIP neither failing.ko nor fault injection is here\n");
		return TAP_SKIP;
	}
	sigaction(SIGBUS, &action, NULL);
	available_before = available_kib();
	return tap_run(tests, sizeof(tests) / sizeof(*tests));
}

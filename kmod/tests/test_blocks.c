// SPDX-License-Identifier: GPL-2.0
/* Blocks: faults, moves, eviction, discard, and what is said of them. */
#include "device.h"

#include <pthread.h>
#include <sys/wait.h>

static struct deepum_event expect(struct device *d, unsigned int type, uint64_t block,
				  unsigned int flags)
{
	struct deepum_event e = next_event(d);

	CHECK_EQUAL(e.type, type);
	CHECK_EQUAL(e.address / BLOCK, block);
	CHECK_EQUAL(e.flags, flags);
	CHECK_EQUAL(e.device, 0);
	CHECK_EQUAL(e.reserved, 0);
	return e;
}

TEST(a_touch_is_one_fault)
{
	struct device d = device_open(8, 8, 64, 0);
	size_t i;

	for (i = 0; i < 8 * BLOCK; i += 4096)
		d.space[i] = i >> 12;
	for (i = 0; i < 8 * BLOCK; i += 4096)
		CHECK_EQUAL(d.space[i], (uint8_t)(i >> 12));
	struct deepum_stats s = stats(&d);
	CHECK_EQUAL(s.faults, 8);
	CHECK_EQUAL(s.zeroed, 8);
	CHECK_EQUAL(s.served[DEEPUM_CAUSE_ZERO], 8);
	CHECK_EQUAL(s.copied_in + s.copied_out, 0);
	CHECK_EQUAL(s.frames_free, 0);
	CHECK_EQUAL(s.host_blocks, 8);
	if (s.mapped_huge)
		CHECK_EQUAL(s.mapped_small, 0);
	else
		CHECK_EQUAL(s.mapped_small, 8); /* one fault maps all 512 pages */
	device_close(&d);
}

TEST(memory_reads_as_zeros_first)
{
	struct device d = device_open(8, 4, 64, 0);
	int i;

	for (i = 0; i < 8; i++)
		CHECK(is_zero(&d, i));
	CHECK_EQUAL(stats(&d).copied_out, 0); /* zeros need not be kept */
	device_close(&d);
}

TEST(data_outlives_eviction)
{
	struct device d = device_open(16, 4, 64, 0);
	int i, round;

	for (i = 0; i < 16; i++)
		fill(&d, i, i);
	for (round = 0; round < 3; round++)
		for (i = 0; i < 16; i++)
			CHECK(holds(&d, i, i));
	for (i = 0; i < 16; i++)
		fill(&d, i, 100 + i);
	for (i = 15; i >= 0; i--)
		CHECK(holds(&d, i, 100 + i));
	struct deepum_stats s = stats(&d);
	/* 12 of the last filled blocks come back; the 4 that stayed do not fault. */
	CHECK_EQUAL(s.faults, 16 + 48 + 16 + 12);
	CHECK_EQUAL(s.evicted_demand, s.faults - 4);
	CHECK_EQUAL(s.evicted, 0);
	CHECK_EQUAL(s.copied_out, 16 + 16); /* only what was written */
	CHECK_EQUAL(s.left_clean, s.evicted_demand - 32 + 0);
	device_close(&d);
}

TEST(the_least_recently_migrated_goes)
{
	struct device d = device_open(8, 4, 64, 0);
	int i;

	for (i = 0; i < 4; i++)
		d.space[i * BLOCK] = 1;
	d.space[0] = 2; /* a touch of what is there changes nothing */
	d.space[4 * BLOCK] = 1;
	CHECK_EQUAL(state(&d, 0), DEEPUM_STATE_ABSENT);
	for (i = 1; i < 5; i++)
		CHECK_EQUAL(state(&d, i), DEEPUM_STATE_RESIDENT);
	device_close(&d);
}

TEST(commands_move_blocks)
{
	struct device d = device_open(8, 4, 64, DEEPUM_FEATURE_TOUCH);
	struct deepum_event e;
	int i;

	for (i = 0; i < 3; i++) {
		fill(&d, i, i);
		e = expect(&d, DEEPUM_EVENT_FAULT, i, DEEPUM_ACCESS_WRITE);
		CHECK_EQUAL(e.address, i * BLOCK);
		e = expect(&d, DEEPUM_EVENT_ARRIVED, i, DEEPUM_MOVE_DEMAND);
		CHECK_EQUAL(e.bytes, BLOCK);
	}
	CHECK_EQUAL(command(&d, DEEPUM_COMMAND_EVICT, 0, 3), 1);
	for (i = 0; i < 3; i++) {
		e = expect(&d, DEEPUM_EVENT_DEPARTED, i, 0);
		CHECK_EQUAL(e.tier, 1);
		CHECK_EQUAL(where(&d, i), DEEPUM_STATE_ABSENT | DEEPUM_STATE_ON_HOST);
	}
	CHECK_EQUAL(command(&d, DEEPUM_COMMAND_PREFETCH, 0, 3), 1);
	for (i = 0; i < 3; i++)
		expect(&d, DEEPUM_EVENT_ARRIVED, i, 0);
	CHECK(holds(&d, 1, 1));
	e = expect(&d, DEEPUM_EVENT_FAULT, 1, DEEPUM_ACCESS_TOUCH);
	CHECK_EQUAL(next_event(&d).type, 0);
	struct deepum_stats s = stats(&d);
	CHECK_EQUAL(s.faults, 3);
	CHECK_EQUAL(s.prefetched, 3);
	CHECK_EQUAL(s.evicted, 3);
	CHECK_EQUAL(s.evicted_demand, 0);
	CHECK_EQUAL(s.served[DEEPUM_CAUSE_MAP], 1);
	CHECK_EQUAL(s.copied_in, 3);
	CHECK_EQUAL(s.copied_out, 3);
	CHECK_EQUAL(s.queued, 0);
	device_close(&d);
}

TEST(every_command_is_answered)
{
	struct device d = device_open(8, 4, 64, 0);
	int i;

	for (i = 0; i < 4; i++)
		fill(&d, i, i);
	while (next_event(&d).type)
		;
	command(&d, DEEPUM_COMMAND_PREFETCH, 2, 1); /* is there */
	expect(&d, DEEPUM_EVENT_ARRIVED, 2, 0);
	command(&d, DEEPUM_COMMAND_PREFETCH, 5, 1); /* no frame */
	expect(&d, DEEPUM_EVENT_DEPARTED, 5, DEEPUM_MOVE_REFUSED);
	command(&d, DEEPUM_COMMAND_EVICT, 1, 1);
	expect(&d, DEEPUM_EVENT_DEPARTED, 1, 0);
	command(&d, DEEPUM_COMMAND_EVICT, 1, 1); /* is not there */
	expect(&d, DEEPUM_EVENT_DEPARTED, 1, 0);
	command(&d, DEEPUM_COMMAND_DISCARD, 2, 1); /* in use */
	expect(&d, DEEPUM_EVENT_ARRIVED, 2, DEEPUM_MOVE_REFUSED);
	command(&d, DEEPUM_COMMAND_DISCARD, 1, 1); /* in use, on the host */
	expect(&d, DEEPUM_EVENT_DEPARTED, 1, DEEPUM_MOVE_REFUSED);
	CHECK_EQUAL(command(&d, DEEPUM_COMMAND_EVICT, 100, 1U << 31), 1); /* unknown: nothing */
	CHECK_EQUAL(next_event(&d).type, 0);
	CHECK_EQUAL(stats(&d).prefetch_refused, 1);
	CHECK_EQUAL(stats(&d).discard_refused, 2);
	for (i = 0; i < 4; i++)
		CHECK(holds(&d, i, i));
	device_close(&d);
}

TEST(a_demanded_prefetch_makes_room)
{
	struct device d = device_open(8, 4, 64, 0);
	struct deepum_command c = { .type = DEEPUM_COMMAND_PREFETCH, .block = 6, .count = 1,
				    .flags = DEEPUM_COMMAND_DEMAND };
	int i;

	for (i = 0; i < 4; i++)
		fill(&d, i, i);
	CHECK_EQUAL(submit(d.fd, &c, 1, DEEPUM_SUBMIT_WAIT), 1);
	CHECK_EQUAL(state(&d, 6), DEEPUM_STATE_RESIDENT);
	CHECK_EQUAL(state(&d, 0), DEEPUM_STATE_ABSENT);
	CHECK_EQUAL(stats(&d).evicted_demand, 1);
	CHECK(holds(&d, 0, 0));
	device_close(&d);
}

TEST(a_clean_hint_loses_nothing)
{
	struct device d = device_open(4, 4, 64, 0);
	struct deepum_command c = { .type = DEEPUM_COMMAND_EVICT, .block = 0, .count = 1,
				    .flags = DEEPUM_COMMAND_CLEAN };

	fill(&d, 0, 1);
	CHECK_EQUAL(submit(d.fd, &c, 1, DEEPUM_SUBMIT_WAIT), 1);
	CHECK(holds(&d, 0, 1)); /* the module knows that it was written */
	fill(&d, 0, 2);
	CHECK_EQUAL(submit(d.fd, &c, 1, DEEPUM_SUBMIT_WAIT), 1);
	CHECK(holds(&d, 0, 2));
	CHECK_EQUAL(submit(d.fd, &c, 1, DEEPUM_SUBMIT_WAIT), 1);
	CHECK(holds(&d, 0, 2));
	device_close(&d);
}

TEST(discard_drops_only_what_is_inactive)
{
	struct device d = device_open(4, 4, 64, 0);
	int i;

	for (i = 0; i < 4; i++)
		fill(&d, i, i);
	command(&d, DEEPUM_COMMAND_EVICT, 3, 1);
	/* One byte short of two blocks: only block 1 lies wholly inside. */
	CHECK_EQUAL(note(&d, DEEPUM_EVENT_FREE, 1, 3 * BLOCK - 2), 1);
	CHECK_EQUAL(where(&d, 0) & DEEPUM_STATE_INACTIVE, 0);
	CHECK_EQUAL(where(&d, 1) & DEEPUM_STATE_INACTIVE, DEEPUM_STATE_INACTIVE);
	CHECK_EQUAL(where(&d, 2) & DEEPUM_STATE_INACTIVE, 0);
	CHECK_EQUAL(note(&d, DEEPUM_EVENT_FREE, 3 * BLOCK, BLOCK), 1);
	command(&d, DEEPUM_COMMAND_DISCARD, 0, 4);
	CHECK_EQUAL(stats(&d).discarded, 2);
	CHECK_EQUAL(stats(&d).discard_refused, 2);
	CHECK_EQUAL(stats(&d).host_blocks, 2); /* memory is given back */
	CHECK(holds(&d, 0, 0));
	CHECK(is_zero(&d, 1));
	CHECK(holds(&d, 2, 2));
	CHECK(is_zero(&d, 3));
	device_close(&d);
}

TEST(what_becomes_active_again_is_kept)
{
	struct device d = device_open(4, 4, 64, 0);

	fill(&d, 0, 7);
	note(&d, DEEPUM_EVENT_FREE, 0, BLOCK);
	note(&d, DEEPUM_EVENT_ALLOC, BLOCK - 1, 1);
	command(&d, DEEPUM_COMMAND_DISCARD, 0, 1);
	CHECK(holds(&d, 0, 7));
	CHECK_EQUAL(stats(&d).discard_refused, 1);
	device_close(&d);
}

TEST(inactive_blocks_go_first)
{
	struct device d = device_open(8, 4, 64, DEEPUM_FEATURE_DROP_INACTIVE);
	struct deepum_event e;
	int i;

	for (i = 0; i < 4; i++)
		fill(&d, i, i);
	note(&d, DEEPUM_EVENT_FREE, 2 * BLOCK, BLOCK);
	while (next_event(&d).type)
		;
	d.space[5 * BLOCK] = 1;
	CHECK_EQUAL(state(&d, 2), DEEPUM_STATE_ABSENT);
	CHECK_EQUAL(state(&d, 0), DEEPUM_STATE_RESIDENT);
	expect(&d, DEEPUM_EVENT_FAULT, 5, DEEPUM_ACCESS_WRITE);
	e = expect(&d, DEEPUM_EVENT_DEPARTED, 2, DEEPUM_MOVE_DEMAND | DEEPUM_MOVE_DROPPED);
	CHECK_EQUAL(e.tier, 1);
	CHECK_EQUAL(stats(&d).dropped_inactive, 1);
	CHECK_EQUAL(stats(&d).copied_out, 0);
	CHECK(is_zero(&d, 2));
	device_close(&d);

	/* Without the feature they are copied like any other. */
	d = device_open(8, 4, 64, 0);
	fill(&d, 2, 2);
	note(&d, DEEPUM_EVENT_FREE, 2 * BLOCK, BLOCK);
	command(&d, DEEPUM_COMMAND_EVICT, 2, 1);
	CHECK(holds(&d, 2, 2));
	device_close(&d);
}

TEST(faults_carry_the_running_launch)
{
	struct device d = device_open(8, 8, 64, 0);
	struct deepum_event launches[2] = {
		{ .type = DEEPUM_EVENT_LAUNCH, .exec_id = 0xABCDEF0123456789 },
		{ .type = DEEPUM_EVENT_LAUNCH, .exec_id = 42 },
	};
	struct deepum_event done = { .type = DEEPUM_EVENT_COMPLETE, .seq = 1 }, e;

	d.space[123] = 1;
	e = expect(&d, DEEPUM_EVENT_FAULT, 0, DEEPUM_ACCESS_WRITE);
	CHECK_EQUAL(e.seq, 0);
	CHECK_EQUAL(e.address, 123);
	next_event(&d);
	CHECK_EQUAL(notify(d.fd, launches, 2), 2);
	CHECK_EQUAL(next_event(&d).seq, 1); /* notices come back in order, numbered */
	e = next_event(&d);
	CHECK_EQUAL(e.seq, 2);
	CHECK_EQUAL(e.exec_id, 42);
	CHECK_EQUAL(d.space[BLOCK + 4097], 0);
	e = expect(&d, DEEPUM_EVENT_FAULT, 1, 0); /* a read */
	CHECK_EQUAL(e.seq, 1);
	CHECK_EQUAL(e.exec_id, 0xABCDEF0123456789);
	CHECK_EQUAL(e.address, BLOCK + 4097);
	uint64_t before = e.time_ns;
	e = expect(&d, DEEPUM_EVENT_ARRIVED, 1, DEEPUM_MOVE_DEMAND);
	CHECK(e.time_ns > before);
	CHECK_EQUAL(notify(d.fd, &done, 1), 1);
	next_event(&d);
	d.space[2 * BLOCK] = 1;
	e = expect(&d, DEEPUM_EVENT_FAULT, 2, DEEPUM_ACCESS_WRITE);
	CHECK_EQUAL(e.seq, 2);
	CHECK_EQUAL(e.exec_id, 42);
	device_close(&d);
}

TEST(reading_first_then_writing)
{
	struct device d = device_open(4, 4, 64, 0);
	struct deepum_stats s;

	CHECK(is_zero(&d, 0));
	fill(&d, 0, 9);
	command(&d, DEEPUM_COMMAND_EVICT, 0, 1);
	CHECK(holds(&d, 0, 9));
	command(&d, DEEPUM_COMMAND_EVICT, 0, 1);
	s = stats(&d);
	CHECK_EQUAL(s.faults, 2);
	if (s.mapped_huge) {
		CHECK_EQUAL(s.write_upgrades, 1);
		CHECK_EQUAL(s.copied_out, 1);
		CHECK_EQUAL(s.left_clean, 1);
	}
	CHECK(holds(&d, 0, 9));
	device_close(&d);
}

TEST(odd_mappings)
{
	struct device d = device_open(8, 4, 64, 0);
	uint8_t *place = mmap(NULL, 8 * BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	volatile uint8_t *odd, *part;
	size_t i;

	/* At an address that no huge entry can serve. */
	odd = mmap(place + 4096 - (uintptr_t)place % BLOCK + BLOCK, 3 * BLOCK,
		   PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, d.fd, BLOCK);
	CHECK(odd != MAP_FAILED);
	for (i = 0; i < 3 * BLOCK; i += 4096)
		odd[i] = i >> 12;
	for (i = 0; i < 3 * BLOCK; i += 4096)
		CHECK_EQUAL(d.space[BLOCK + i], (uint8_t)(i >> 12)); /* the same memory */
	CHECK_EQUAL(stats(&d).faults, 3);
	CHECK(stats(&d).mapped_small >= 3);
	/* A piece of a block, and one that begins and ends inside. */
	part = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, d.fd, 5 * BLOCK + 8192);
	CHECK(part != MAP_FAILED);
	part[0] = 1;
	part[BLOCK - 1] = 2;
	CHECK_EQUAL(d.space[5 * BLOCK + 8192], 1);
	CHECK_EQUAL(d.space[6 * BLOCK + 8191], 2);
	/* An eviction takes every mapping away. */
	command(&d, DEEPUM_COMMAND_EVICT, 0, 8);
	CHECK_EQUAL(stats(&d).frames_free, 4);
	odd[1] = 77;
	CHECK_EQUAL(d.space[BLOCK + 1], 77);
	/* Holes, protections and moves. */
	CHECK_EQUAL(munmap((void *)d.space + BLOCK + 4096, 4096), 0);
	CHECK_EQUAL(d.space[BLOCK + 1], 77);
	CHECK_EQUAL(d.space[BLOCK + 8192], 2);
	CHECK_EQUAL(mprotect((void *)d.space + 5 * BLOCK, BLOCK, PROT_READ), 0);
	CHECK_EQUAL(d.space[5 * BLOCK + 8192], 1);
	CHECK_EQUAL(mprotect((void *)d.space + 5 * BLOCK, BLOCK, PROT_READ | PROT_WRITE), 0);
	d.space[5 * BLOCK + 8192] = 3;
	CHECK_EQUAL(part[0], 3);
	part = mremap((void *)part, BLOCK, BLOCK, MREMAP_MAYMOVE | MREMAP_FIXED, place);
	CHECK_EQUAL(part[0], 3);
	CHECK(mremap((void *)part, BLOCK, 2 * BLOCK, MREMAP_MAYMOVE) == MAP_FAILED);
	munmap(place, 8 * BLOCK);
	device_close(&d);
}

#define THREADS 4

struct writer {
	struct device *device;
	int number;
	long bad;
};

static void *write_blocks(void *argument)
{
	struct writer *w = argument;
	unsigned int seed = w->number;
	int i;

	/* Every thread owns a word in every page of every block. */
	for (i = 0; i < 150; i++) {
		uint64_t *word = (uint64_t *)(uintptr_t)(w->device->space + (rand_r(&seed) % 16) * BLOCK +
					      (rand_r(&seed) % 512) * 4096) + w->number;
		uint64_t before = *(volatile uint64_t *)word;

		*(volatile uint64_t *)word = before + 1;
		__atomic_fetch_add(word + 64, 1, __ATOMIC_RELAXED);
		if (*(volatile uint64_t *)word != before + 1)
			w->bad++;
	}
	return NULL;
}

TEST(threads_write_while_blocks_move)
{
	struct device d = device_open(16, 5, 1024, 0);
	struct writer writers[THREADS];
	pthread_t threads[THREADS];
	uint64_t sum = 0, twice = 0;
	size_t i, k;

	for (i = 0; i < THREADS; i++) {
		writers[i] = (struct writer){ &d, (int)i, 0 };
		CHECK_EQUAL(pthread_create(&threads[i], NULL, write_blocks, &writers[i]), 0);
	}
	for (i = 0; i < 200; i++) { /* a policy that knows nothing */
		struct deepum_command c = { .type = 1 + i % 2, .block = i * 7 % 16, .count = 1 };

		submit(d.fd, &c, 1, 0);
		usleep(500);
	}
	for (i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		CHECK_EQUAL(writers[i].bad, 0);
	}
	for (i = 0; i < 16 * BLOCK; i += 4096)
		for (k = 0; k < THREADS; k++) {
			sum += ((uint64_t *)(d.space + i))[k];
			twice += ((uint64_t *)(d.space + i))[k + 64];
		}
	CHECK_EQUAL(sum, THREADS * 150);
	CHECK_EQUAL(twice, THREADS * 150);
	device_close(&d);
}

TEST(system_calls_reach_the_memory)
{
	struct device d = device_open(8, 4, 64, 0);
	int pipes[2], i;
	char text[8] = "";

	CHECK_EQUAL(pipe(pipes), 0);
	for (i = 0; i < 8; i++) { /* every second block has to go first */
		CHECK_EQUAL(write(pipes[1], "deepum", 7), 7);
		CHECK_EQUAL(read(pipes[0], (void *)d.space + i * BLOCK + 10, 7), 7);
	}
	CHECK_EQUAL(write(pipes[1], (void *)d.space + 10, 7), 7);
	CHECK_EQUAL(read(pipes[0], text, 7), 7);
	CHECK(!strcmp(text, "deepum"));
	/* Commands and results in UM space itself: no lock is held while they are copied. */
	struct deepum_command *c = (void *)(d.space + 3 * BLOCK - 16);
	*c = (struct deepum_command){ .type = DEEPUM_COMMAND_EVICT, .block = 0, .count = 8 };
	CHECK_EQUAL(command(&d, DEEPUM_COMMAND_EVICT, 0, 8), 1);
	CHECK_EQUAL(submit(d.fd, c, 1, DEEPUM_SUBMIT_WAIT), 1);
	struct deepum_residency r = { .size = sizeof(r), .count = 8,
				      .states = (uintptr_t)(d.space + 5 * BLOCK - 4) };
	CHECK_EQUAL(ioctl(d.fd, DEEPUM_IOC_RESIDENCY, &r), 0);
	device_close(&d);
}

TAP_MAIN(T(a_touch_is_one_fault), T(memory_reads_as_zeros_first), T(data_outlives_eviction),
	 T(the_least_recently_migrated_goes), T(commands_move_blocks),
	 T(every_command_is_answered), T(a_demanded_prefetch_makes_room),
	 T(a_clean_hint_loses_nothing), T(discard_drops_only_what_is_inactive),
	 T(what_becomes_active_again_is_kept), T(inactive_blocks_go_first),
	 T(faults_carry_the_running_launch), T(reading_first_then_writing), T(odd_mappings),
	 T(threads_write_while_blocks_move), T(system_calls_reach_the_memory))

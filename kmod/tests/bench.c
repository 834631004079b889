// SPDX-License-Identifier: GPL-2.0
/*
 * What faults, moves, requests and events cost, next to a bare copy of a block in the same
 * program: JSON on standard output. Every measurement is preceded by copies of its own, and
 * compared with those: what else the machine does meanwhile hits both.
 *
 *   bench [ROUNDS [requests]]    requests: no moves, only what ioctls and events cost
 */
#include "device.h"

#include <time.h>

#define BLOCKS 16
#define CALLS 2000
#define EVENTS 4096
#define MOST 999

static int rounds = 15;

/* A figure in all rounds, and the bare copies that were made right before. */
struct figure {
	const char *name;
	int is_move; /* of a block */
	int count;
	double ns[MOST];
	double ratio[MOST];
};

enum {
	COPY, COPY_IN_KERNEL, PREFETCH, EVICT, ZERO, IN, OUT_IN, MAP, SEEN_IN, SEEN_MAP, CALL,
	LAUNCH, EVENT, FULL, FIGURES
};

static struct figure figures[FIGURES] = {
	[COPY] = { "copy_bare", 1 },
	[COPY_IN_KERNEL] = { "copy_in_kernel", 1 },
	[PREFETCH] = { "prefetch_a_block", 1 },
	[EVICT] = { "evict_a_block", 1 },
	[ZERO] = { "fault_zero", 1 },
	[IN] = { "fault_copy", 1 },
	[OUT_IN] = { "fault_evict", 1 },
	[MAP] = { "fault_map_only", 1 },
	[SEEN_IN] = { "touch_copy_seen_by_program", 1 },
	[SEEN_MAP] = { "touch_map_seen_by_program", 1 },
	[CALL] = { "ioctl_empty", 0 },
	[LAUNCH] = { "ioctl_launch_and_complete", 0 },
	[EVENT] = { "event_notified_and_in_ring", 0 },
	[FULL] = { "event_notified_ring_full", 0 },
};

static char *from, *to;

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static double bare_copy(void)
{
	double start = now_ns();
	int i;

	for (i = 0; i < BLOCKS; i++)
		memcpy(to + i * BLOCK, from + i * BLOCK, BLOCK);
	return (now_ns() - start) / BLOCKS;
}

static void put_down(int which, double ns, double copy)
{
	struct figure *f = &figures[which];

	f->ns[f->count] = ns;
	f->ratio[f->count++] = ns / copy;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Quartiles: what lies in the middle is the half of all rounds. */
static void show(const char *name, double *values, int count, int digits)
{
	qsort(values, count, sizeof(*values), compare);
	printf("\"%s\": [%.*f, %.*f, %.*f]", name, digits, values[count / 4], digits,
	       values[count / 2], digits, values[count * 3 / 4]);
}

static void *buffer(void)
{
	void *memory = mmap(NULL, (BLOCKS + 1) * BLOCK, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memory = (void *)(((uintptr_t)memory + BLOCK - 1) & ~(BLOCK - 1));
	madvise(memory, BLOCKS * BLOCK, MADV_HUGEPAGE);
	memset(memory, 1, BLOCKS * BLOCK);
	return memory;
}

static double served(const struct deepum_stats *a, const struct deepum_stats *b, int cause)
{
	return (double)(b->served_ns[cause] - a->served_ns[cause]) /
	       (b->served[cause] - a->served[cause]);
}

static void touch_all(struct device *d, int first, int count)
{
	int i;

	for (i = first; i < first + count; i++)
		d->space[i * BLOCK] = i;
}

static void measure_moves(struct device *d)
{
	struct deepum_stats a, b;
	double start, copy;

	copy = bare_copy();
	put_down(COPY, bare_copy(), copy);

	a = stats(d);
	touch_all(d, 0, BLOCKS);
	b = stats(d);
	put_down(ZERO, served(&a, &b, DEEPUM_CAUSE_ZERO), bare_copy());

	copy = bare_copy();
	a = stats(d);
	start = now_ns();
	command(d, DEEPUM_COMMAND_EVICT, 0, BLOCKS);
	put_down(EVICT, (now_ns() - start) / BLOCKS, copy);
	copy = bare_copy();
	start = now_ns();
	command(d, DEEPUM_COMMAND_PREFETCH, 0, BLOCKS);
	put_down(PREFETCH, (now_ns() - start) / BLOCKS, copy);
	b = stats(d);
	put_down(COPY_IN_KERNEL, (double)(b.copy_ns - a.copy_ns) /
	     (b.copied_in - a.copied_in + b.copied_out - a.copied_out), copy);

	copy = bare_copy();
	a = b;
	start = now_ns();
	touch_all(d, 0, BLOCKS);
	put_down(SEEN_MAP, (now_ns() - start) / BLOCKS, copy);
	b = stats(d);
	put_down(MAP, served(&a, &b, DEEPUM_CAUSE_MAP), copy);

	command(d, DEEPUM_COMMAND_EVICT, 0, BLOCKS);
	copy = bare_copy();
	a = stats(d);
	start = now_ns();
	touch_all(d, 0, BLOCKS);
	put_down(SEEN_IN, (now_ns() - start) / BLOCKS, copy);
	b = stats(d);
	put_down(IN, served(&a, &b, DEEPUM_CAUSE_COPY), copy);

	touch_all(d, BLOCKS, BLOCKS); /* written, and now all frames are taken */
	copy = bare_copy();
	a = stats(d);
	touch_all(d, 0, BLOCKS);
	b = stats(d);
	put_down(OUT_IN, served(&a, &b, DEEPUM_CAUSE_EVICT), copy);
}

static void measure_requests(struct device *d)
{
	static struct deepum_event events[EVENTS];
	struct deepum_features features = { .size = sizeof(features) };
	struct deepum_event pair[2] = { { .type = DEEPUM_EVENT_LAUNCH },
					{ .type = DEEPUM_EVENT_COMPLETE } };
	double start;
	int i;

	for (i = 0; i < EVENTS; i++)
		events[i] = (struct deepum_event){ .type = DEEPUM_EVENT_RANGE, .bytes = 1 };
	start = now_ns();
	for (i = 0; i < CALLS; i++)
		ioctl(d->fd, DEEPUM_IOC_FEATURES, &features);
	put_down(CALL, (now_ns() - start) / CALLS, 1);
	start = now_ns();
	for (i = 0; i < CALLS; i++) {
		pair[1].seq = i + 1;
		notify(d->fd, pair, 2);
		d->ring->tail = d->ring->head;
	}
	put_down(LAUNCH, (now_ns() - start) / CALLS, 1);
	start = now_ns();
	notify(d->fd, events, EVENTS);
	put_down(EVENT, (now_ns() - start) / EVENTS, 1);
	notify(d->fd, events, EVENTS);
	start = now_ns();
	notify(d->fd, events, EVENTS);
	put_down(FULL, (now_ns() - start) / EVENTS, 1);
	CHECK(stats(d).events_dropped >= EVENTS);
}

static void show_all(int moves)
{
	const char *comma = "";
	struct figure *f;

	printf("{\n");
	for (f = figures; f < figures + FIGURES; f++) {
		if (!f->count)
			continue;
		printf("%s  \"%s\": {", comma, f->name);
		show("quartiles_ns", f->ns, f->count, 0);
		if (f->is_move) {
			printf(", ");
			show("ratio_to_copy", f->ratio, f->count, 3);
		}
		printf("}");
		comma = ",\n";
	}
	if (moves) {
		printf(",\n  \"prefetch_blocks_per_s\": %.0f", 1e9 / figures[PREFETCH].ns[rounds / 2]);
		printf(",\n  \"fault_blocks_per_s\": %.0f", 1e9 / figures[SEEN_IN].ns[rounds / 2]);
	}
	printf("\n}\n");
}

int main(int argc, char **argv)
{
	int r, moves = argc < 3;

	if (argc > 1)
		rounds = atoi(argv[1]);
	if (rounds < 1 || rounds > MOST)
		return 2;
	if (setjmp(tap_out))
		return 1;
	from = buffer();
	to = buffer();
	for (r = 0; r < rounds; r++) {
		struct device d = device_open(3 * BLOCKS, BLOCKS, 2 * EVENTS, 0);

		if (moves)
			measure_moves(&d);
		measure_requests(&d);
		device_close(&d);
	}
	show_all(moves);
	return 0;
}

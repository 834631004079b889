// SPDX-License-Identifier: GPL-2.0
/* What goes wrong elsewhere: policies that die, memory that runs out, contexts side by side. */
#include "device.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static long long number_in(const char *file, const char *name)
{
	FILE *f = fopen(file, "r");
	long long value = -1;
	char line[256];

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, name, strlen(name)))
			sscanf(line + strlen(name), "%*[: ]%lld", &value);
	fclose(f);
	return value;
}

static long long oom_kills(void)
{
	return number_in("/proc/vmstat", "oom_kill");
}

static struct device consulting(unsigned int patience_us)
{
	struct deepum_setup request = { .size = sizeof(request), .frames = 4, .ring_events = 64,
					.patience_us = patience_us };
	struct device d = { .fd = open(DEVICE, O_RDWR), .blocks = 8 };

	CHECK_EQUAL(ioctl(d.fd, DEEPUM_IOC_SETUP, &request), 0);
	d.space = mmap(NULL, 8 * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, d.fd, 0);
	d.ring = mmap(NULL, DEEPUM_RING_EVENTS + 64 * sizeof(struct deepum_event),
		      PROT_READ | PROT_WRITE, MAP_SHARED, d.fd, DEEPUM_MMAP_RING);
	CHECK(d.space != MAP_FAILED && (void *)d.ring != MAP_FAILED);
	d.events = (void *)((char *)d.ring + DEEPUM_RING_EVENTS);
	return d;
}

static void *touch_block_6(void *argument)
{
	((struct device *)argument)->space[6 * BLOCK] = 1;
	return NULL;
}

TEST(a_policy_names_the_victim)
{
	struct device d = consulting(30 * 1000 * 1000);
	struct deepum_command c = { .type = DEEPUM_COMMAND_EVICT, .block = 2, .count = 1,
				    .flags = DEEPUM_COMMAND_DEMAND };
	double start = now();
	pthread_t thread;
	int i;

	for (i = 0; i < 4; i++)
		fill(&d, i, i);
	while (next_event(&d).type)
		;
	CHECK_EQUAL(pthread_create(&thread, NULL, touch_block_6, &d), 0);
	while (next_event(&d).type != DEEPUM_EVENT_FAULT)
		usleep(1000);
	usleep(20000);
	CHECK_EQUAL(state(&d, 6), DEEPUM_STATE_ABSENT); /* it waits */
	CHECK_EQUAL(submit(d.fd, &c, 1, 0), 1);
	pthread_join(thread, NULL);
	CHECK(now() - start < 20);
	CHECK_EQUAL(state(&d, 2), DEEPUM_STATE_ABSENT);
	CHECK_EQUAL(state(&d, 0), DEEPUM_STATE_RESIDENT);
	CHECK_EQUAL(stats(&d).evicted_demand, 0);
	CHECK_EQUAL(stats(&d).evicted, 1);
	device_close(&d);
}

TEST(a_policy_has_no_victim_to_name)
{
	struct device d = consulting(3600U * 1000 * 1000);
	pthread_t thread;
	int i;

	CHECK_EQUAL(submit(d.fd, NULL, 0, DEEPUM_SUBMIT_PASS), 0); /* for no fault: means nothing */
	for (i = 0; i < 4; i++)
		fill(&d, i, i);
	while (next_event(&d).type)
		;
	CHECK_EQUAL(pthread_create(&thread, NULL, touch_block_6, &d), 0);
	while (next_event(&d).type != DEEPUM_EVENT_FAULT)
		usleep(1000);
	CHECK_EQUAL(submit(d.fd, NULL, 0, DEEPUM_SUBMIT_PASS), 0);
	pthread_join(thread, NULL);
	CHECK_EQUAL(state(&d, 0), DEEPUM_STATE_ABSENT);
	CHECK_EQUAL(stats(&d).evicted_demand, 1);
	device_close(&d);
}

TEST(a_policy_that_stalls_is_waited_for_once)
{
	struct device d = consulting(1500 * 1000);
	double start;
	int i;

	for (i = 0; i < 4; i++)
		fill(&d, i, i);
	start = now();
	d.space[4 * BLOCK] = 1;
	CHECK(now() - start > 1.45);
	CHECK_EQUAL(stats(&d).evicted_demand, 1);
	CHECK_EQUAL(state(&d, 0), DEEPUM_STATE_ABSENT);
	start = now();
	d.space[5 * BLOCK] = 1;
	d.space[6 * BLOCK] = 1;
	CHECK(now() - start < 1.2);
	CHECK_EQUAL(command(&d, DEEPUM_COMMAND_PREFETCH, 0, 1), 1); /* it is back */
	start = now();
	d.space[7 * BLOCK] = 1;
	CHECK(now() - start > 1.45);
	device_close(&d);
}

TEST(a_thread_that_waits_can_be_killed)
{
	struct device d = consulting(3600U * 1000 * 1000);
	double start = now();
	int status = 0, i;
	pid_t child = fork();

	if (!child) {
		uint8_t *own = mmap(NULL, 8 * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, d.fd, 0);

		for (i = 0; i < 8; i++)
			own[i * BLOCK] = 1;
		_exit(0);
	}
	while (next_event(&d).address != 4 * BLOCK)
		usleep(1000);
	kill(child, SIGKILL);
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	CHECK(now() - start < 60);
	CHECK_EQUAL(state(&d, 4), DEEPUM_STATE_ABSENT);
	device_close(&d);
}

TEST(a_policy_process_dies)
{
	struct device d = device_open(24, 8, 64, 0);
	int i, round, status;
	pid_t child;

	for (round = 0; round < 3; round++) {
		child = fork();
		if (!child)
			for (i = 0;; i++) { /* moves blocks about, reads no events */
				struct deepum_command c = { .type = 1 + i % 2, .count = 1,
							    .block = i * 11 % 24 };
				submit(d.fd, &c, 1, 0);
			}
		for (i = 0; i < 24; i++)
			fill(&d, i, round * 100 + i);
		kill(child, SIGKILL);
		CHECK_EQUAL(waitpid(child, &status, 0), child);
		for (i = 0; i < 24; i++)
			CHECK(holds(&d, i, round * 100 + i));
	}
	CHECK(stats(&d).events_dropped > 0); /* the ring ran over, the program went on */
	CHECK_EQUAL(stats(&d).events_dropped, d.ring->dropped);
	device_close(&d);
}

TEST(a_ring_of_rubbish)
{
	struct device d = device_open(16, 4, 64, 0);
	unsigned int seed = 1;
	int i;

	for (i = 0; i < 64; i++) {
		d.ring->head = ((uint64_t)rand_r(&seed) << 32) | rand_r(&seed);
		d.ring->tail = ((uint64_t)rand_r(&seed) << 32) | rand_r(&seed);
		d.ring->dropped = rand_r(&seed);
		d.ring->size = rand_r(&seed);
		d.ring->event_bytes = 0;
		memset(d.events, rand_r(&seed), 64 * sizeof(struct deepum_event));
		fill(&d, i % 16, i);
		CHECK(holds(&d, i % 16, i));
	}
	/* A reader that mends its tail reads on. */
	d.ring->size = 64;
	d.ring->tail = stats(&d).events;
	command(&d, DEEPUM_COMMAND_EVICT, 0, 16);
	CHECK_EQUAL(next_event(&d).type, DEEPUM_EVENT_DEPARTED);
	device_close(&d);
}

TEST(memory_that_runs_out_is_sigbus)
{
	long long kills = oom_kills(), before = available_kib();
	int status, tries;
	pid_t child = fork();

	if (!child) {
		int fd = open(DEVICE, O_RDWR);
		size_t blocks = 1 << 20; /* 2 TiB */
		uint8_t *space;
		size_t i;

		setup(fd, 4, 64, 0);
		space = mmap(NULL, blocks * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (space == MAP_FAILED)
			_exit(1);
		for (i = 0; i < blocks; i++)
			space[i * BLOCK] = 1;
		_exit(0);
	}
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status));
	CHECK_EQUAL(WTERMSIG(status), SIGBUS);
	CHECK_EQUAL(oom_kills(), kills);
	for (tries = 0; tries < 50 && available_kib() < before - 8 * 1024; tries++)
		usleep(100000); /* the last reference goes a little after the process */
	CHECK(available_kib() > before - 8 * 1024);
}

TEST(memory_set_aside_cannot_run_out)
{
	struct device d = device_open(64, 4, 64, 0);
	struct deepum_event e = { .type = DEEPUM_EVENT_MANAGE, .bytes = 1ULL << 41 };
	long long kills = oom_kills();
	int i;

	CHECK_EQUAL(note(&d, DEEPUM_EVENT_MANAGE, 0, 8 * BLOCK), 1);
	CHECK_EQUAL(stats(&d).host_blocks, 8);
	errno = 0;
	e.address = 64 * BLOCK;
	CHECK_EQUAL(notify(d.fd, &e, 1), -1); /* 2 TiB more */
	CHECK_EQUAL(errno, ENOMEM);
	for (i = 0; i < 8; i++)
		fill(&d, i, i);
	for (i = 0; i < 8; i++)
		CHECK(holds(&d, i, i));
	/* A discard keeps the place; giving the range back does not. */
	note(&d, DEEPUM_EVENT_FREE, 0, 8 * BLOCK);
	command(&d, DEEPUM_COMMAND_DISCARD, 0, 8);
	CHECK_EQUAL(stats(&d).discarded, 8);
	CHECK(stats(&d).host_blocks >= 8);
	note(&d, DEEPUM_EVENT_UNMANAGE, 0, 1ULL << 42);
	command(&d, DEEPUM_COMMAND_DISCARD, 0, 1U << 21);
	CHECK_EQUAL(stats(&d).host_blocks, 0);
	CHECK(is_zero(&d, 3));
	CHECK_EQUAL(oom_kills(), kills);
	device_close(&d);
}

static void write_file(const char *name, const char *text)
{
	int fd = open(name, O_WRONLY);

	CHECK(fd >= 0);
	CHECK_EQUAL(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

TEST(a_cgroup_pays_for_its_blocks)
{
	const char *group = "/sys/fs/cgroup/deepum-test";
	char name[128], pid[32];
	long long kills = oom_kills();
	int status, fd, i;
	pid_t child;

	write_file("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	CHECK(mkdir(group, 0755) == 0 || errno == EEXIST);
	snprintf(name, sizeof(name), "%s/memory.max", group);
	write_file(name, "67108864");
	child = fork();
	if (!child) {
		snprintf(name, sizeof(name), "%s/cgroup.procs", group);
		snprintf(pid, sizeof(pid), "%d", getpid());
		write_file(name, pid);
		fd = open(DEVICE, O_RDWR);
		if (setup(fd, 64, 64, 0) == 0 || errno != ENOMEM)
			_exit(1); /* 128 MiB of frames do not fit */
		if (setup(fd, 4, 64, 0))
			_exit(2);
		volatile uint8_t *space = mmap(NULL, 64 * BLOCK, PROT_READ | PROT_WRITE,
					       MAP_SHARED, fd, 0);
		for (i = 0; i < 64; i++)
			space[i * BLOCK] = 1; /* nor do 64 blocks on the host */
		_exit(3);
	}
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status));
	CHECK_EQUAL(WTERMSIG(status), SIGBUS);
	CHECK_EQUAL(oom_kills(), kills);
	rmdir(group);
}

TEST(contexts_do_not_see_each_other)
{
	struct device a = device_open(8, 8, 64, 0), b = device_open(8, 8, 64, 0);
	struct deepum_stats before;
	int i;

	for (i = 0; i < 8; i++) {
		fill(&a, i, i);
		fill(&b, i, 100 + i);
	}
	before = stats(&b);
	command(&a, DEEPUM_COMMAND_EVICT, 0, 8);
	note(&a, DEEPUM_EVENT_FREE, 0, 8 * BLOCK);
	command(&a, DEEPUM_COMMAND_DISCARD, 0, 8);
	for (i = 0; i < 8; i++)
		CHECK(holds(&b, i, 100 + i));
	struct deepum_stats after = stats(&b);
	/* Not even a mapping of the other's was touched. */
	CHECK_EQUAL(after.faults, before.faults);
	CHECK_EQUAL(after.mapped_huge, before.mapped_huge);
	CHECK_EQUAL(after.mapped_small, before.mapped_small);
	CHECK_EQUAL(after.events, before.events);
	for (i = 0; i < 8; i++)
		CHECK(is_zero(&a, i));
	device_close(&a);
	device_close(&b);
}

TEST(nobody_reads_what_another_left)
{
	struct device d = device_open(64, 64, 64, 0);
	int i;

	for (i = 0; i < 64; i++)
		fill(&d, i, 1 + i);
	device_close(&d);
	d = device_open(64, 32, 64, 0);
	for (i = 0; i < 64; i++)
		CHECK(is_zero(&d, i));
	/* Nor its own, after a discard: the frame was another block's. */
	for (i = 0; i < 32; i++)
		fill(&d, i, 1 + i);
	note(&d, DEEPUM_EVENT_FREE, 0, 32 * BLOCK);
	command(&d, DEEPUM_COMMAND_DISCARD, 0, 32);
	for (i = 0; i < 64; i++)
		CHECK(is_zero(&d, i));
	device_close(&d);
}

TEST(a_child_process_gets_no_mapping)
{
	struct device d = device_open(4, 4, 64, 0);
	int status;
	pid_t child;

	fill(&d, 0, 5);
	child = fork();
	if (!child) {
		uint8_t *own = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, d.fd, 0);

		own[BLOCK - 1] = 77; /* the file it does have */
		d.space[0] = 1;	      /* ends here */
		_exit(0);
	}
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status));
	CHECK_EQUAL(WTERMSIG(status), SIGSEGV);
	CHECK(holds(&d, 0, 5));
	CHECK_EQUAL(d.space[BLOCK - 1], 77);
	device_close(&d);
}

TEST(a_mapping_outlives_its_file)
{
	struct device d = device_open(8, 4, 64, 0);
	int i;

	close(d.fd);
	for (i = 0; i < 8; i++)
		fill(&d, i, i);
	for (i = 0; i < 8; i++)
		CHECK(holds(&d, i, i));
	munmap((void *)d.space, 8 * BLOCK);
	munmap(d.ring, DEEPUM_RING_EVENTS + 64 * sizeof(struct deepum_event));
}

TEST(unloading_is_refused_while_in_use)
{
	struct device d = device_open(4, 4, 64, 0);

	fill(&d, 0, 3);
	errno = 0;
	CHECK_EQUAL(syscall(SYS_delete_module, "deepum", O_NONBLOCK), -1);
	CHECK_EQUAL(errno, EWOULDBLOCK);
	close(d.fd);
	errno = 0; /* the mapping alone keeps it */
	CHECK_EQUAL(syscall(SYS_delete_module, "deepum", O_NONBLOCK), -1);
	CHECK_EQUAL(errno, EWOULDBLOCK);
	CHECK(holds(&d, 0, 3));
	munmap((void *)d.space, 4 * BLOCK);
	munmap(d.ring, DEEPUM_RING_EVENTS + 64 * sizeof(struct deepum_event));
}

TAP_MAIN(T(a_policy_names_the_victim), T(a_policy_has_no_victim_to_name),
	 T(a_policy_that_stalls_is_waited_for_once),
	 T(a_thread_that_waits_can_be_killed), T(a_policy_process_dies), T(a_ring_of_rubbish),
	 T(memory_that_runs_out_is_sigbus), T(memory_set_aside_cannot_run_out),
	 T(a_cgroup_pays_for_its_blocks), T(contexts_do_not_see_each_other),
	 T(nobody_reads_what_another_left), T(a_child_process_gets_no_mapping),
	 T(a_mapping_outlives_its_file), T(unloading_is_refused_while_in_use))

// SPDX-License-Identifier: Apache-2.0
//
// A libcuda.so.1 of the few calls that memory mode vmm moves memory with. It moves nothing and keeps time: a copy is
// over when a bus of the given speed would be done with it, a remap when the driver would have returned. All times are
// stretched by PACED_SCALE, so that the threads that ask for them hardly count. With PACED_TURNS=1 a mapping is made
// accessible after what is being copied to the host, and nobody else can call meanwhile, as bench/gpu/remaps.py has found.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NOT_FOUND = 500, NOT_READY = 600, NOT_SUPPORTED = 801 };
enum { CREATE, RELEASE, MAP, UNMAP, KINDS };

static double scale = 1, rate_in = 55e9, rate_out = 55e9, rate_both = 101e9, copy_us = 4, turns;
static double call_us[KINDS] = {100, 20, 25, 20};
uint64_t paced_calls[KINDS];

static pthread_mutex_t bus = PTHREAD_MUTEX_INITIALIZER, driver = PTHREAD_MUTEX_INITIALIZER;
static uint64_t bus_free[2], next_address = 0x700000000000, next_handle = 1;

static void set(double *value, const char *name)
{
	const char *text = getenv(name);

	if (text)
		*value = atof(text);
}

__attribute__((constructor)) static void begin(void)
{
	set(&scale, "PACED_SCALE");
	set(&rate_in, "PACED_IN");
	set(&rate_out, "PACED_OUT");
	set(&rate_both, "PACED_BOTH");
	set(&call_us[CREATE], "PACED_CREATE_US");
	set(&call_us[RELEASE], "PACED_RELEASE_US");
	set(&call_us[MAP], "PACED_MAP_US");
	set(&call_us[UNMAP], "PACED_UNMAP_US");
	set(&turns, "PACED_TURNS");
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void wait_until(uint64_t then)
{
	struct timespec time = {then / 1000000000, then % 1000000000};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR)
		;
}

// One call at a time, as the driver's lock has it.
static int take_time(int kind)
{
	pthread_mutex_lock(&driver);
	if (turns && kind == MAP)
		wait_until(bus_free[1]);
	wait_until(now() + (uint64_t)(call_us[kind] * 1000 * scale));
	paced_calls[kind]++;
	pthread_mutex_unlock(&driver);
	return SUCCESS;
}

struct stream {
	uint64_t end;
};

static int copy(int out, uint64_t bytes, struct stream *stream)
{
	double rate = out ? rate_out : rate_in;
	uint64_t start;

	if (turns) {  // a call as any other
		pthread_mutex_lock(&driver);
		pthread_mutex_unlock(&driver);
	}
	start = now();
	pthread_mutex_lock(&bus);
	if (stream->end > start)
		start = stream->end;
	if (bus_free[out] > start)
		start = bus_free[out];
	if (bus_free[!out] > start && rate > rate_both / 2)
		rate = rate_both / 2;
	stream->end = bus_free[out] = start + (uint64_t)((bytes / rate * 1e9 + copy_us * 1000) * scale);
	pthread_mutex_unlock(&bus);
	return SUCCESS;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	static void *self;
	char newer[128];
	Dl_info info;

	if (!self && dladdr(&paced_calls, &info))
		self = dlopen(info.dli_fname, RTLD_NOW);
	snprintf(newer, sizeof(newer), "%s_v2", name);
	*function = dlsym(self, newer);
	if (!*function)
		*function = dlsym(self, name);
	if (status)
		*status = !*function;
	return *function ? SUCCESS : NOT_FOUND;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
int cuInit(unsigned flags) { return SUCCESS; }
int cuCtxSetCurrent(void *context) { return SUCCESS; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return SUCCESS; }
int cuCtxSynchronize(void) { return SUCCESS; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = calloc(1, sizeof(struct stream)); return SUCCESS; }
int cuStreamDestroy_v2(void *stream) { return SUCCESS; }
int cuStreamSynchronize(struct stream *stream) { wait_until(stream->end); return SUCCESS; }
int cuEventCreate(void **event, unsigned flags) { *event = calloc(1, sizeof(uint64_t)); return SUCCESS; }
int cuEventDestroy_v2(void *event) { return SUCCESS; }
int cuEventRecord(uint64_t *event, struct stream *stream) { *event = stream->end; return SUCCESS; }
int cuEventQuery(uint64_t *event) { return now() >= *event ? SUCCESS : NOT_READY; }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) { return copy(1, bytes, stream); }
int cuMemcpyHtoDAsync_v2(uint64_t to, void *from, size_t bytes, void *stream) { return copy(0, bytes, stream); }

int cuMemAddressReserve(uint64_t *address, size_t size, size_t align, uint64_t wanted, uint64_t flags)
{
	pthread_mutex_lock(&bus);
	if (align < 1 << 21)
		align = 1 << 21;
	*address = next_address = (next_address + align - 1) / align * align;
	next_address += size;
	pthread_mutex_unlock(&bus);
	return SUCCESS;
}

int cuMemAddressFree(uint64_t address, size_t size) { return SUCCESS; }

int cuMemCreate(uint64_t *handle, size_t size, void *properties, uint64_t flags)
{
	*handle = __sync_add_and_fetch(&next_handle, 1);
	return take_time(CREATE);
}

int cuMemRelease(uint64_t handle) { return take_time(RELEASE); }
int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, uint64_t flags) { return SUCCESS; }
int cuMemSetAccess(uint64_t address, size_t size, void *wanted, size_t count) { return take_time(MAP); }
int cuMemUnmap(uint64_t address, size_t size) { return take_time(UNMAP); }

int cuMemHostAlloc(void **memory, size_t size, unsigned flags)
{
	*memory = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return *memory == MAP_FAILED ? OUT_OF_MEMORY : SUCCESS;
}

int cuMemFreeHost(void *memory) { return SUCCESS; }
// The host's memory is addresses alone.
int cuMemHostRegister_v2(void *memory, size_t size, unsigned flags) { return NOT_SUPPORTED; }
int cuMemHostUnregister(void *memory) { return NOT_SUPPORTED; }

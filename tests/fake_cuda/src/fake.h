/* SPDX-License-Identifier: Apache-2.0
 *
 * How a test steers the fake driver. Everything here may be called from any thread at any time, and takes no part in
 * what is counted, delayed or failed.
 */
#ifndef FAKE_CUDA_FAKE_H
#define FAKE_CUDA_FAKE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fake_access { FAKE_READ = 1, FAKE_WRITE = 2, FAKE_ATOMIC = 3 };
enum fake_place { FAKE_NOWHERE = 0, FAKE_HOST = 1, FAKE_DEVICE = 2 };

/* A page that the device touched and that was not there. */
struct fake_fault {
  uint64_t address; /* of the 4 KiB page */
  uint64_t time_ns; /* CLOCK_MONOTONIC_RAW */
  uint32_t access;  /* enum fake_access */
  uint32_t pages;   /* pages that the same service brought in */
};

struct fake_launch {
  const char* name;
  unsigned grid[3];
  unsigned block[3];
};

/* `params` holds the arguments at the offsets of the layout given at registration. */
typedef void (*fake_kernel)(const unsigned char* params, const struct fake_launch* launch);

/* Settings and counters by name (README.md lists them). An unknown name is an error: -1. */
int fake_set(const char* name, uint64_t value);
int fake_get(const char* name, uint64_t* value);

/* A driver function (its name without _v2, _ptsz) or a kind of work ("exec:kernel", "exec:prefetch", ...; "*" is every
 * driver function) takes this much longer: a fixed part and a random one, uniform in [0, random_ns]. */
int fake_delay(const char* function, uint64_t fixed_ns, uint64_t random_ns);

/* The nth call from now (1 is the next) and the `times` - 1 after it return `result` and do nothing. "*" counts the calls
 * of every driver function. nth 0 takes the plan away. */
int fake_fail(const char* function, uint64_t nth, int result, uint64_t times);

/* Calls of a function so far ("*": of all), failed ones included. */
uint64_t fake_calls(const char* function);

/* The function whose call failed by plan last, NULL if none has. */
const char* fake_failed(void);

/* The oldest fault not yet read: 1, or 0 when there is none. */
int fake_next_fault(struct fake_fault* fault);

/* State of the page at an address: enum fake_place, or -1 where there is no managed memory; `discarded` may be NULL. */
int fake_where(uint64_t address, int* discarded);

/* Bytes of [address, address + size) on the device. */
uint64_t fake_resident(uint64_t address, uint64_t size);

/* Access of the device to the mapping at an address: 0 none, 1 to read, 3 to read and write; -1 where nothing is mapped. */
int fake_access(uint64_t address);

/* For kernels: the range is about to be read or written by the device. 0 if it is not memory; the context is lost then. */
int fake_touch(uint64_t address, uint64_t size, int access);

/* What a host access does to managed memory: its pages come back to the host. 0 if it is not managed memory. */
int fake_host_touch(uint64_t address, uint64_t size, int access);

/* A kernel that cuModuleGetFunction and cuLibraryGetKernel find by its name from now on. */
int fake_register_kernel(const char* name, fake_kernel run, const uint32_t* offsets, const uint32_t* sizes, uint32_t count);

/* Counters to zero, faults forgotten, plans and delays taken away; settings stay. */
void fake_reset(void);

/* For the fake CUPTI: called around driver functions, and for each unified-memory event. NULL takes it away. */
struct fake_api_event {
  int site; /* 0 enter, 1 exit */
  uint32_t cbid;
  const char* function;
  const char* symbol;
  const void* params;
  int* result;
  void* context;
  uint64_t* correlation_data;
  uint32_t correlation_id;
};
enum fake_memory_kind { FAKE_BYTES_IN = 1, FAKE_BYTES_OUT = 2, FAKE_GPU_FAULT = 4 };
struct fake_memory_event {
  uint32_t kind; /* enum fake_memory_kind */
  uint32_t flags;
  uint64_t value, address, start_ns, end_ns; /* times on CLOCK_REALTIME */
};
void fake_set_api_hook(void (*hook)(const struct fake_api_event*));
void fake_set_memory_hook(void (*hook)(const struct fake_memory_event*));

#ifdef __cplusplus
}
#endif
#endif

// SPDX-License-Identifier: Apache-2.0
//
// Settings and counters, each an atomic with a name.
#pragma once

#include <atomic>
#include <cstdint>

// X(name, value at start)
#define FAKE_SETTINGS(X)                                                                 \
  X(memory_bytes, 256u << 20)      /* of the card */                                     \
  X(other_bytes, 0)                /* of those, used by other processes */               \
  X(host_bytes, 1ull << 50)        /* for managed and pinned memory */                   \
  X(page_bytes, 64u << 10)         /* residency is kept by page: 4 or 64 KiB */          \
  X(managed_align, 2u << 20)       /* of managed allocations */                          \
  X(concurrent_managed, 1)         /* 0: as WSL and Windows have it */                   \
  X(devices, 1)                    /* 0 or 1 */                                          \
  X(driver_version, 13000)                                                               \
  X(vmm, 1)                        /* 0: no virtual memory management */                 \
  X(host_vmm, 1)                   /* 0: none of host memory */                          \
  X(queue_entries, 1020)           /* work a stream takes before its submitter waits */  \
  X(queue_holds_lock, 1)           /* that waiting keeps every other submitter out */    \
  X(lazy_loading, 0)               /* the first launch of a kernel waits for the device */ \
  X(first_run_holds, 0)            /* the first launch of a kernel, until it ran, holds up all later work */ \
  X(fault_ns, 0)                   /* each fault service takes this */                   \
  X(fault_ring, 65536)             /* faults kept for fake_next_fault */                 \
  X(prefetch_call_ns, 0)           /* a prefetch call keeps its caller this long, ... */ \
  X(prefetch_ns_per_mib, 0)        /* ... and this for each MiB asked for */             \
  X(poison, 0xDB)                  /* what discarded memory is filled with */            \
  X(seed, 1)                       /* of the random delays */                            \
  X(cupti_refuse, 0)               /* cuptiSubscribe returns this */              \
  X(cupti_counters_refuse, 0)      /* cuptiActivityEnable returns this */

#define FAKE_COUNTERS(X)                                                                  \
  X(faults)                        /* pages touched where they were not */                \
  X(fault_services)                /* times that faults were served */                    \
  X(faults_dropped)                /* faults that no longer fitted into the ring */       \
  X(bytes_in_fault)                                                                       \
  X(bytes_in_prefetch)                                                                    \
  X(bytes_out_prefetch)                                                                   \
  X(bytes_out_evicted)             /* by the driver itself, for lack of memory */         \
  X(bytes_out_host)                /* by a touch of the host */                           \
  X(bytes_discarded)                                                                      \
  X(bytes_htod)                                                                           \
  X(bytes_dtoh)                                                                           \
  X(bytes_dtod)                                                                           \
  X(discarded_reads)               /* pages read after their discard, before a write */   \
  X(illegal_touches)               /* of what is not memory, or not mapped; the context is lost */ \
  X(unmapped_in_use)               /* mappings taken from a running kernel or copy; it is lost too */ \
  X(alias_conflicts)               /* a frame used through two mappings at once, one of them writing */ \
  X(remote_pages)                  /* pages used over the bus without a fault */          \
  X(kernels)                       /* run, those of graphs included */                    \
  X(graphs)                        /* run */                                              \
  X(host_functions)                /* run */                                              \
  X(queue_waits)                   /* submissions that found a full queue */              \
  X(lost)                          /* the context's error, or 0 */

#define FAKE_GAUGES(X)                                                                    \
  X(device_bytes)                  /* of cuMemAlloc */                                    \
  X(frame_bytes)                   /* of cuMemCreate on the device */                     \
  X(peak_frame_bytes)                                                                     \
  X(host_frame_bytes)              /* of cuMemCreate on the host */                       \
  X(frames)                        /* alive: not released, or still mapped */             \
  X(mappings)                                                                             \
  X(mapped_bytes)                  /* each mapping of a frame counts */                   \
  X(reserved_bytes)                /* addresses */                                        \
  X(pinned_bytes)                  /* of cuMemHostAlloc */                                \
  X(managed_bytes)                                                                        \
  X(resident_bytes)                /* managed, on the device */                           \
  X(peak_resident_bytes)                                                                  \
  X(allocations)                                                                          \
  X(streams)                                                                              \
  X(events)                                                                               \
  X(contexts)                      /* primary contexts retained */

struct Values {
#define X(name, value) std::atomic<uint64_t> name{value};
  FAKE_SETTINGS(X)
#undef X
#define X(name) std::atomic<uint64_t> name{0};
  FAKE_COUNTERS(X)
  FAKE_GAUGES(X)
#undef X
};

Values& values();

// Monotonic and wall time in nanoseconds; a sleep that a zero leaves out.
uint64_t raw_ns();
uint64_t wall_ns();
void nap_ns(uint64_t ns);

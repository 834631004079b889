/* SPDX-License-Identifier: GPL-2.0 */
/* What the stand-in shares between its files: names as the driver's, places not. */
#ifndef MOCK_H
#define MOCK_H

#include <linux/types.h>

typedef struct {
	u32 val;
} uvm_processor_id_t;

typedef enum {
	UVM_PERF_EVENT_BLOCK_DESTROY = 0,
	UVM_PERF_EVENT_FAULT = 5,
	UVM_PERF_EVENT_MIGRATION = 6,
} uvm_perf_event_t;

typedef enum {
	UVM_FAULT_ACCESS_TYPE_PREFETCH = 0,
	UVM_FAULT_ACCESS_TYPE_READ,
	UVM_FAULT_ACCESS_TYPE_WRITE,
	UVM_FAULT_ACCESS_TYPE_ATOMIC_WEAK,
	UVM_FAULT_ACCESS_TYPE_ATOMIC_STRONG,
} uvm_fault_access_type_t;

typedef enum {
	UVM_MAKE_RESIDENT_CAUSE_REPLAYABLE_FAULT = 0,
	UVM_MAKE_RESIDENT_CAUSE_PREFETCH = 3,
	UVM_MAKE_RESIDENT_CAUSE_EVICTION = 4,
} uvm_make_resident_cause_t;

typedef struct {
	u64 timestamp;
	u64 fault_address;
	u32 fault_source;
	uvm_fault_access_type_t fault_type : 6;
	uvm_fault_access_type_t fault_access_type : 4;
} uvm_fault_buffer_entry_t;

typedef union {
	struct {
		void *block;
		uvm_processor_id_t proc_id;
		uvm_processor_id_t preferred_location;
		union {
			struct {
				uvm_fault_buffer_entry_t *buffer_entry;
				u32 batch_id;
				bool is_duplicate;
			} gpu;
			struct {
				u64 fault_va;
				u32 cpu_num;
				bool is_write;
				u64 pc;
			} cpu;
		};
	} fault;
	struct {
		void *push;
		void *block;
		uvm_processor_id_t dst;
		uvm_processor_id_t src;
		u64 address;
		u64 bytes;
		uvm_make_resident_cause_t cause;
	} migration;
} uvm_perf_event_data_t;

typedef struct {
	void *va_space;
} uvm_perf_va_space_events_t;

void uvm_perf_event_notify(uvm_perf_va_space_events_t *va_space_events, uvm_perf_event_t event_id,
			   uvm_perf_event_data_t *event_data);

#endif

// SPDX-License-Identifier: GPL-2.0
/*
 * A stand-in for NVIDIA's UVM driver, for tests: a function of the same name and shape, called on
 * request. Fields have the driver's names and are laid out differently on purpose, since deepum
 * must find them by type information.
 *
 *   echo "gpu PROCESSOR ADDRESS ACCESS" > /sys/module/nvidia_uvm/parameters/tell
 *   echo "cpu ADDRESS WRITE"            > ...
 *   echo "move TO FROM ADDRESS BYTES CAUSE" > ...
 *   echo "other KIND"                   > ...
 */
#include <linux/module.h>
#include <linux/moduleparam.h>

#include "mock.h"

static int mock_tell(const char *text, const struct kernel_param *parameter)
{
	static uvm_perf_va_space_events_t events;
	uvm_fault_buffer_entry_t entry = {};
	uvm_perf_event_data_t data = {};
	u32 processor, access, from, kind;
	u64 address, bytes;

	if (sscanf(text, "gpu %u %llx %u", &processor, &address, &access) == 3) {
		entry.fault_address = address;
		entry.fault_type = 63;
		entry.fault_access_type = access;
		data.fault.proc_id.val = processor;
		data.fault.gpu.buffer_entry = &entry;
		uvm_perf_event_notify(&events, UVM_PERF_EVENT_FAULT, &data);
	} else if (sscanf(text, "cpu %llx %u", &address, &access) == 2) {
		data.fault.cpu.fault_va = address;
		data.fault.cpu.is_write = access;
		uvm_perf_event_notify(&events, UVM_PERF_EVENT_FAULT, &data);
	} else if (sscanf(text, "move %u %u %llx %llx %u", &processor, &from, &address, &bytes,
			  &kind) == 5) {
		data.migration.dst.val = processor;
		data.migration.src.val = from;
		data.migration.address = address;
		data.migration.bytes = bytes;
		data.migration.cause = kind;
		uvm_perf_event_notify(&events, UVM_PERF_EVENT_MIGRATION, &data);
	} else if (sscanf(text, "other %u", &kind) == 1) {
		uvm_perf_event_notify(&events, kind, &data);
	} else {
		return -EINVAL;
	}
	return 0;
}

static const struct kernel_param_ops mock_operations = { .set = mock_tell };
module_param_cb(tell, &mock_operations, NULL, 0200);
MODULE_PARM_DESC(tell, "an event to notify");

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("stand-in for NVIDIA's UVM driver in deepum's tests");

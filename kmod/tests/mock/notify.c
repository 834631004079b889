// SPDX-License-Identifier: GPL-2.0
/* The function observed. In a file of its own, as in the driver: so calls to it are real ones. */
#include <linux/compiler.h>

#include "mock.h"

void uvm_perf_event_notify(uvm_perf_va_space_events_t *va_space_events,
			   uvm_perf_event_t event_id, uvm_perf_event_data_t *event_data)
{
	barrier(); /* a call that the compiler keeps */
}

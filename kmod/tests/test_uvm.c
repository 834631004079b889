// SPDX-License-Identifier: GPL-2.0
/* NVIDIA's driver observed, with a stand-in that has its function and its field names. */
#include "device.h"

#include <sys/syscall.h>

#define MOCK "/run/modules/nvidia_uvm.ko"
#define TELL "/sys/module/nvidia_uvm/parameters/tell"

/* The stand-in's layout; Python reads it from type information. */
static const struct deepum_uvm layout = {
	.size = sizeof(struct deepum_uvm),
	.event_fault = 5, .event_migration = 6, .cause_eviction = 4,
	.fault_processor = 8, .fault_entry = 16, .fault_cpu_address = 16, .fault_cpu_write = 28,
	.entry_address = 8, .entry_access_bit = 8 * 20 + 6, .entry_access_bits = 4,
	.access_write = 2,
	.migration_to = 16, .migration_from = 20, .migration_address = 24, .migration_bytes = 32,
	.migration_cause = 40, .data_bytes = 48,
};

static void load(void)
{
	int fd = open(MOCK, O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	CHECK_EQUAL(syscall(SYS_finit_module, fd, "", 0), 0);
	close(fd);
}

static void unload(void)
{
	CHECK_EQUAL(syscall(SYS_delete_module, "nvidia_uvm", O_NONBLOCK), 0);
}

static void tell(const char *text)
{
	int fd = open(TELL, O_WRONLY);

	CHECK(fd >= 0);
	CHECK_EQUAL(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static int attach(const struct device *d, struct deepum_uvm at)
{
	return ioctl(d->fd, DEEPUM_IOC_UVM, &at);
}

static void expect(struct device *d, unsigned int type, unsigned int device, uint64_t address,
		   uint64_t bytes, unsigned int flags)
{
	struct deepum_event e = next_event(d);

	CHECK_EQUAL(e.type, type);
	CHECK_EQUAL(e.device, DEEPUM_DEVICE_UVM | device);
	CHECK_EQUAL(e.address, address);
	CHECK_EQUAL(e.bytes, bytes);
	CHECK_EQUAL(e.flags, flags);
	CHECK(e.id);
	CHECK(e.time_ns);
}

static void expect_all(struct device *d)
{
	tell("gpu 1 7f0000201000 1");
	expect(d, DEEPUM_EVENT_FAULT, 1, 0x7f0000201000, 0, 0);
	tell("gpu 3 7f0000202000 0"); /* a prefetch access reads */
	expect(d, DEEPUM_EVENT_FAULT, 3, 0x7f0000202000, 0, 0);
	tell("gpu 1 7f0000203000 2");
	expect(d, DEEPUM_EVENT_FAULT, 1, 0x7f0000203000, 0, DEEPUM_ACCESS_WRITE);
	tell("gpu 1 7f0000204000 4"); /* an atomic writes */
	expect(d, DEEPUM_EVENT_FAULT, 1, 0x7f0000204000, 0, DEEPUM_ACCESS_WRITE);
	tell("cpu 7f0000205000 0");
	expect(d, DEEPUM_EVENT_FAULT, 0, 0x7f0000205000, 0, 0);
	tell("cpu 7f0000206000 1");
	expect(d, DEEPUM_EVENT_FAULT, 0, 0x7f0000206000, 0, DEEPUM_ACCESS_WRITE);
	tell("move 2 0 7f0000400000 200000 3");
	expect(d, DEEPUM_EVENT_ARRIVED, 2, 0x7f0000400000, 0x200000, 0);
	tell("move 0 2 7f0000400000 10000 4");
	expect(d, DEEPUM_EVENT_DEPARTED, 2, 0x7f0000400000, 0x10000, DEEPUM_MOVE_DEMAND);
	tell("other 0");
	tell("other 8");
	CHECK_EQUAL(next_event(d).type, 0);
}

TEST(loaded_before)
{
	struct device d = device_open(1, 4, 64, 0);

	load();
	CHECK_EQUAL(attach(&d, layout), 0);
	expect_all(&d);
	device_close(&d);
	tell("gpu 1 1000 1"); /* nobody listens */
	unload();
}

TEST(loaded_afterwards_and_again)
{
	struct device d = device_open(1, 4, 64, 0);

	CHECK_EQUAL(attach(&d, layout), 0);
	load();
	expect_all(&d);
	unload();
	load();
	expect_all(&d);
	unload();
	device_close(&d);
}

TEST(detached)
{
	struct device d = device_open(1, 4, 64, 0);
	struct deepum_uvm off = { .size = sizeof(off), .flags = DEEPUM_UVM_DETACH };

	load();
	CHECK_EQUAL(attach(&d, layout), 0);
	CHECK_EQUAL(ioctl(d.fd, DEEPUM_IOC_UVM, &off), 0);
	tell("gpu 1 1000 1");
	CHECK_EQUAL(next_event(&d).type, 0);
	CHECK_EQUAL(attach(&d, layout), 0);
	expect_all(&d);
	unload(); /* observed or not */
	device_close(&d);
}

TEST(several_observers_one_layout)
{
	struct device a = device_open(1, 4, 64, 0), b = device_open(1, 4, 64, 0);
	struct deepum_uvm other = layout;
	struct deepum_event first, second;

	load();
	CHECK_EQUAL(attach(&a, layout), 0);
	CHECK(attach(&a, layout) == -1 && errno == EBUSY);
	other.migration_cause = 44;
	CHECK(attach(&b, other) == -1 && errno == EBUSY);
	CHECK_EQUAL(attach(&b, layout), 0);
	tell("gpu 1 5000 1");
	first = next_event(&a);
	second = next_event(&b);
	CHECK_EQUAL(first.address, 0x5000);
	CHECK_EQUAL(second.address, 0x5000);
	CHECK_EQUAL(first.id, second.id);
	device_close(&a);
	tell("gpu 1 6000 1");
	CHECK_EQUAL(next_event(&b).address, 0x6000);
	device_close(&b);
	unload();
}

TEST(layouts_are_checked)
{
	struct device d = device_open(1, 4, 64, 0);
	struct deepum_uvm at;

#define BAD(field, value)                                            \
	do {                                                         \
		at = layout;                                         \
		at.field = (value);                                  \
		errno = 0;                                           \
		CHECK(attach(&d, at) == -1 && errno == EINVAL);      \
	} while (0)
	BAD(flags, 2);
	BAD(data_bytes, 0);
	BAD(data_bytes, 1000);
	BAD(data_bytes, 43);
	BAD(event_fault, 6);
	BAD(fault_processor, 45);
	BAD(fault_entry, 41);
	BAD(fault_cpu_address, 41);
	BAD(fault_cpu_write, 48);
	BAD(migration_bytes, 41);
	BAD(entry_address, 1000);
	BAD(entry_access_bits, 0);
	BAD(entry_access_bits, 33);
	CHECK_EQUAL(setresuid(65534, 65534, 0), 0);
	errno = 0;
	CHECK(attach(&d, layout) == -1 && errno == EPERM);
	CHECK_EQUAL(setresuid(0, 0, 0), 0);
	device_close(&d);
}

TAP_MAIN(T(loaded_before), T(loaded_afterwards_and_again), T(detached),
	 T(several_observers_one_layout), T(layouts_are_checked))

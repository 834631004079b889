// SPDX-License-Identifier: GPL-2.0
/*
 * NVIDIA's driver, observed: one probe on the function through which it tells its own parts of
 * faults and migrations. Nothing is changed there, and nothing is assumed of its structures: user
 * space reads where the fields lie from the driver's type information.
 */
#include <linux/irq_work.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/random.h>
#include <linux/rculist.h>
#include <linux/siphash.h>
#include <linux/timekeeping.h>
#include <linux/uaccess.h>

#include "deepum.h"

#ifdef CONFIG_KPROBES

#define DEEPUM_UVM_MODULE "nvidia_uvm"
#define DEEPUM_UVM_FUNCTION "uvm_perf_event_notify"
#define DEEPUM_UVM_DATA_MAX 512
#define DEEPUM_UVM_STAGED 64 /* a power of two */

static DEFINE_MUTEX(deepum_uvm_lock); /* all below but the traversal of the list */
static LIST_HEAD(deepum_uvm_observers);
static struct deepum_uvm deepum_uvm_layout;
static bool deepum_uvm_probing;
static siphash_key_t deepum_uvm_key;

/*
 * A probe may run as if in an NMI, where no lock can be taken. So it leaves its events with the
 * processor, and an interrupt that follows at once takes them to the rings.
 */
struct deepum_uvm_stage {
	struct irq_work work;
	u32 head;
	u32 tail;
	u32 lost;
	struct deepum_event events[DEEPUM_UVM_STAGED];
};

static DEFINE_PER_CPU(struct deepum_uvm_stage, deepum_uvm_stages);

static void deepum_uvm_deliver(struct irq_work *work)
{
	struct deepum_uvm_stage *stage = container_of(work, struct deepum_uvm_stage, work);
	struct deepum_context *ctx;
	u32 lost = xchg(&stage->lost, 0);

	rcu_read_lock();
	while (stage->tail != READ_ONCE(stage->head)) {
		barrier(); /* the event was written before head, on this processor */
		list_for_each_entry_rcu(ctx, &deepum_uvm_observers, observer)
			deepum_ring_push(&ctx->ring,
					 &stage->events[stage->tail % DEEPUM_UVM_STAGED]);
		WRITE_ONCE(stage->tail, stage->tail + 1);
	}
	if (lost)
		list_for_each_entry_rcu(ctx, &deepum_uvm_observers, observer)
			deepum_ring_lose(&ctx->ring, lost);
	rcu_read_unlock();
}

static void deepum_uvm_leave(const struct deepum_event *event)
{
	struct deepum_uvm_stage *stage = this_cpu_ptr(&deepum_uvm_stages);

	if (stage->head - READ_ONCE(stage->tail) == DEEPUM_UVM_STAGED) {
		WRITE_ONCE(stage->lost, stage->lost + 1);
	} else {
		stage->events[stage->head % DEEPUM_UVM_STAGED] = *event;
		barrier(); /* the interrupt that reads it comes to this processor */
		WRITE_ONCE(stage->head, stage->head + 1);
	}
	irq_work_queue(&stage->work);
}

/* A word of the driver's memory; 0 where there is none. */
static u64 deepum_uvm_read(unsigned long base, u32 offset, u32 bytes)
{
	u64 value = 0;

	if (copy_from_kernel_nofault(&value, (void *)(base + offset), bytes))
		return 0;
	return value;
}

static u64 deepum_uvm_bits(unsigned long base, u32 bit, u32 width)
{
	u64 word = deepum_uvm_read(base, bit / 32 * sizeof(u32), sizeof(u32));

	return word >> bit % 32 & ((1ULL << width) - 1);
}

static void deepum_uvm_fault(unsigned long data, struct deepum_event *event)
{
	const struct deepum_uvm *at = &deepum_uvm_layout;
	u32 processor = deepum_uvm_read(data, at->fault_processor, sizeof(u32));
	unsigned long entry;
	bool write;

	event->type = DEEPUM_EVENT_FAULT;
	event->device |= processor;
	if (processor) {
		entry = deepum_uvm_read(data, at->fault_entry, sizeof(entry));
		event->address = deepum_uvm_read(entry, at->entry_address, sizeof(u64));
		write = deepum_uvm_bits(entry, at->entry_access_bit, at->entry_access_bits) >=
			at->access_write;
	} else {
		event->address = deepum_uvm_read(data, at->fault_cpu_address, sizeof(u64));
		write = deepum_uvm_read(data, at->fault_cpu_write, sizeof(u8));
	}
	if (write)
		event->flags = DEEPUM_ACCESS_WRITE;
}

static void deepum_uvm_migration(unsigned long data, struct deepum_event *event)
{
	const struct deepum_uvm *at = &deepum_uvm_layout;
	u32 to = deepum_uvm_read(data, at->migration_to, sizeof(u32));
	u32 from = deepum_uvm_read(data, at->migration_from, sizeof(u32));

	if (to) {
		event->type = DEEPUM_EVENT_ARRIVED;
		event->device |= to;
	} else {
		event->type = DEEPUM_EVENT_DEPARTED;
		event->device |= from;
		event->tier = 1;
	}
	if (deepum_uvm_read(data, at->migration_cause, sizeof(u32)) == at->cause_eviction)
		event->flags = DEEPUM_MOVE_DEMAND;
	event->address = deepum_uvm_read(data, at->migration_address, sizeof(u64));
	event->bytes = deepum_uvm_read(data, at->migration_bytes, sizeof(u64));
}

/* Runs without preemption, in the driver's threads: copy and return. */
static int deepum_uvm_notified(struct kprobe *probe, struct pt_regs *regs)
{
	unsigned long space = regs_get_kernel_argument(regs, 0);
	u32 kind = regs_get_kernel_argument(regs, 1);
	unsigned long data = regs_get_kernel_argument(regs, 2);
	struct deepum_event event = { .device = DEEPUM_DEVICE_UVM };

	if (kind == deepum_uvm_layout.event_fault)
		deepum_uvm_fault(data, &event);
	else if (kind == deepum_uvm_layout.event_migration)
		deepum_uvm_migration(data, &event);
	else
		return 0;
	/* Tells address spaces of the GPU apart without giving kernel addresses away. */
	event.id = siphash_1u64(space, &deepum_uvm_key);
	event.time_ns = ktime_get_mono_fast_ns();
	deepum_uvm_leave(&event);
	return 0;
}

static struct kprobe deepum_uvm_probe;

/*
 * In two steps, for the sake of the error: some kernels (7.3) say of a probe that they had no
 * memory to arm that it was registered.
 */
static int deepum_uvm_start(void)
{
	int error;

	lockdep_assert_held(&deepum_uvm_lock);
	memset(&deepum_uvm_probe, 0, sizeof(deepum_uvm_probe));
	deepum_uvm_probe.symbol_name = DEEPUM_UVM_MODULE ":" DEEPUM_UVM_FUNCTION;
	deepum_uvm_probe.pre_handler = deepum_uvm_notified;
	deepum_uvm_probe.flags = KPROBE_FLAG_DISABLED;
	error = register_kprobe(&deepum_uvm_probe);
	if (error)
		return error;
	error = enable_kprobe(&deepum_uvm_probe);
	if (error)
		unregister_kprobe(&deepum_uvm_probe);
	deepum_uvm_probing = !error;
	return error;
}

static void deepum_uvm_stop(void)
{
	lockdep_assert_held(&deepum_uvm_lock);
	if (deepum_uvm_probing)
		unregister_kprobe(&deepum_uvm_probe);
	deepum_uvm_probing = false;
}

static bool deepum_uvm_valid(const struct deepum_uvm *at)
{
	u32 end = at->data_bytes;

	return end && end <= DEEPUM_UVM_DATA_MAX && at->event_fault != at->event_migration &&
	       at->fault_processor + 4 <= end && at->fault_entry + 8 <= end &&
	       at->fault_cpu_address + 8 <= end && at->fault_cpu_write + 1 <= end &&
	       at->migration_to + 4 <= end && at->migration_from + 4 <= end &&
	       at->migration_address + 8 <= end && at->migration_bytes + 8 <= end &&
	       at->migration_cause + 4 <= end && at->entry_address <= DEEPUM_UVM_DATA_MAX &&
	       at->entry_access_bit <= 8 * DEEPUM_UVM_DATA_MAX && at->entry_access_bits &&
	       at->entry_access_bit % 32 + at->entry_access_bits <= 32;
}

static bool deepum_uvm_loaded(void)
{
	struct kobject *driver = kset_find_obj(THIS_MODULE->mkobj.kobj.kset, DEEPUM_UVM_MODULE);

	kobject_put(driver);
	return driver;
}

/*
 * From now on, or from when the driver is loaded on. One that is loaded and whose function is not
 * found is an error: newer kernels say so too when they have no memory to look for it.
 */
int deepum_uvm_attach(struct deepum_context *ctx, const struct deepum_uvm *layout)
{
	int error = 0;

	if (!deepum_uvm_valid(layout))
		return -EINVAL;
	mutex_lock(&deepum_uvm_lock);
	if (!list_empty(&ctx->observer)) {
		error = -EBUSY;
	} else if (list_empty(&deepum_uvm_observers)) {
		deepum_uvm_layout = *layout;
		error = deepum_uvm_start();
		if (error == -ENOENT && !deepum_uvm_loaded())
			error = 0;
	} else if (memcmp(&deepum_uvm_layout, layout, sizeof(*layout))) {
		error = -EBUSY; /* one driver has one layout */
	}
	if (!error)
		list_add_tail_rcu(&ctx->observer, &deepum_uvm_observers);
	mutex_unlock(&deepum_uvm_lock);
	return error;
}

void deepum_uvm_detach(struct deepum_context *ctx)
{
	mutex_lock(&deepum_uvm_lock);
	if (!list_empty(&ctx->observer)) {
		list_del_rcu(&ctx->observer);
		if (list_empty(&deepum_uvm_observers))
			deepum_uvm_stop();
		synchronize_rcu();
		INIT_LIST_HEAD(&ctx->observer);
	}
	mutex_unlock(&deepum_uvm_lock);
}

static int deepum_uvm_module(struct notifier_block *block, unsigned long action, void *data)
{
	const struct module *module = data;

	if (strcmp(module->name, DEEPUM_UVM_MODULE))
		return NOTIFY_DONE;
	mutex_lock(&deepum_uvm_lock);
	if (action == MODULE_STATE_LIVE && !deepum_uvm_probing &&
	    !list_empty(&deepum_uvm_observers)) {
		if (deepum_uvm_start())
			pr_warn("deepum: cannot observe " DEEPUM_UVM_MODULE "\n");
	} else if (action == MODULE_STATE_GOING) {
		deepum_uvm_stop();
	}
	mutex_unlock(&deepum_uvm_lock);
	return NOTIFY_DONE;
}

static struct notifier_block deepum_uvm_notifier = {
	.notifier_call = deepum_uvm_module,
};

int deepum_uvm_init(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		init_irq_work(&per_cpu(deepum_uvm_stages, cpu).work, deepum_uvm_deliver);
	get_random_bytes(&deepum_uvm_key, sizeof(deepum_uvm_key));
	return register_module_notifier(&deepum_uvm_notifier);
}

void deepum_uvm_exit(void)
{
	int cpu;

	unregister_module_notifier(&deepum_uvm_notifier);
	for_each_possible_cpu(cpu)
		irq_work_sync(&per_cpu(deepum_uvm_stages, cpu).work);
}

#else

int deepum_uvm_init(void)
{
	return 0;
}

void deepum_uvm_exit(void)
{
}

int deepum_uvm_attach(struct deepum_context *ctx, const struct deepum_uvm *layout)
{
	return -EOPNOTSUPP;
}

void deepum_uvm_detach(struct deepum_context *ctx)
{
}

#endif

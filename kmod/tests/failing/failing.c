// SPDX-License-Identifier: GPL-2.0
/*
 * Lets allocations fail that are asked for below the functions of a module, for tests, on kernels
 * that were built without fault injection: probes make the allocators return NULL.
 *
 *   insmod failing.ko first=TEXT last=END    of the module
 *   echo N > /sys/module/failing/parameters/nth
 *                the N-th one of the task that writes fails; 0: none. Reads as what is left of N.
 *   echo 1 > .../all
 *                each of them fails, whoever asks
 */
#include <linux/gfp.h>
#include <linux/kprobes.h>
#include <linux/linkage.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/stacktrace.h>

static unsigned long first, last;
module_param(first, ulong, 0400);
module_param(last, ulong, 0400);

static bool all;
module_param(all, bool, 0600);

static struct task_struct *target;
static unsigned int left;

/* What an allocator that fails goes to instead. */
asmlinkage void failing_return(void);
asm(".pushsection .text\n"
	".type failing_return, @function\n"
	"failing_return:\n"
	ASM_ENDBR
	ASM_RET
	".size failing_return, .-failing_return\n"
	".popsection\n");

/* Whether the module that is tested is what asks. */
static bool failing_below(void)
{
	unsigned long entries[40];
	unsigned int i, count = stack_trace_save(entries, ARRAY_SIZE(entries), 0);

	for (i = 0; i < count; i++)
		if (entries[i] >= first && entries[i] < last)
			return true;
	return false;
}

struct failing_probe {
	struct kprobe probe;
	u8 gfp; /* number of that argument, 0: it is not looked at */
};

static int failing_asked(struct kprobe *probe, struct pt_regs *regs)
{
	const unsigned long nofail = (__force unsigned long)__GFP_NOFAIL;
	u8 gfp = container_of(probe, struct failing_probe, probe)->gfp;

	if (!READ_ONCE(all) && READ_ONCE(target) != current)
		return 0;
	if (!in_task() || (gfp && regs_get_kernel_argument(regs, gfp - 1) & nofail))
		return 0;
	if (!failing_below())
		return 0;
	if (!READ_ONCE(all) && (!left || --left))
		return 0;
	regs->ax = 0;
	regs->ip = (unsigned long)failing_return;
	return 1;
}

#define FAILING(function, argument)                                                      \
	{                                                                                \
		.probe = { .symbol_name = function, .pre_handler = failing_asked },      \
		.gfp = argument,                                                         \
	}

static struct failing_probe probes[] = {
	FAILING("kmem_cache_alloc_noprof", 2),
	FAILING("kmem_cache_alloc_lru_noprof", 3),
	FAILING("kmem_cache_alloc_node_noprof", 2),
	FAILING("__kmalloc_cache_noprof", 2),
	FAILING("__kmalloc_cache_node_noprof", 2),
	FAILING("__kmalloc_noprof", 2),
	FAILING("__kvmalloc_node_noprof", 0),
	FAILING("vmalloc_user_noprof", 0),
	FAILING("__alloc_pages_noprof", 1),
};

static int nth_set(const char *text, const struct kernel_param *parameter)
{
	unsigned int n;
	int error = kstrtouint(text, 0, &n);

	if (error)
		return error;
	WRITE_ONCE(target, NULL);
	left = n;
	if (n)
		WRITE_ONCE(target, current);
	return 0;
}

static int nth_get(char *buffer, const struct kernel_param *parameter)
{
	return sysfs_emit(buffer, "%u\n", left);
}

static const struct kernel_param_ops nth_operations = { .set = nth_set, .get = nth_get };
module_param_cb(nth, &nth_operations, NULL, 0600);

static int __init failing_init(void)
{
	int i, error;

	for (i = 0; i < ARRAY_SIZE(probes); i++) {
		error = register_kprobe(&probes[i].probe);
		if (error) {
			pr_err("failing: %s cannot be probed: %d\n", probes[i].probe.symbol_name,
			       error);
			while (i--)
				unregister_kprobe(&probes[i].probe);
			return error;
		}
	}
	return 0;
}

static void __exit failing_exit(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(probes); i++)
		unregister_kprobe(&probes[i].probe);
}

module_init(failing_init);
module_exit(failing_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("allocations that fail, for deepum's tests");

// SPDX-License-Identifier: GPL-2.0
/* Memory for frames and for the host store, in blocks. */
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/moduleparam.h>
#include <linux/sched.h>

#include "deepum.h"

static unsigned int reserve_mib = 64;
module_param(reserve_mib, uint, 0644);
MODULE_PARM_DESC(reserve_mib, "Memory of the machine, in MiB, that is left to others (64)");

#define DEEPUM_COPY_PAGES 64 /* between two looks at whether another task should run */

/*
 * Such memory belongs to no process that the OOM killer could find, so it must never be what
 * brings the machine there: a request that cannot be met fails, and its owner gets SIGBUS or
 * ENOMEM. Memory cgroups count it.
 */
struct page *deepum_memory_alloc(void)
{
	long reserve = (long)READ_ONCE(reserve_mib) << (20 - PAGE_SHIFT);

	if (si_mem_available() < reserve + (1L << DEEPUM_BLOCK_ORDER))
		return NULL;
	return alloc_pages(GFP_KERNEL_ACCOUNT | __GFP_COMP | __GFP_NOWARN | __GFP_RETRY_MAYFAIL,
			   DEEPUM_BLOCK_ORDER);
}

void deepum_memory_free(struct page *page)
{
	if (page)
		__free_pages(page, DEEPUM_BLOCK_ORDER);
}

void deepum_memory_copy(struct page *to, struct page *from)
{
	unsigned int i;

	for (i = 0; i < 1U << DEEPUM_BLOCK_ORDER; i += DEEPUM_COPY_PAGES) {
		memcpy(page_address(to + i), page_address(from + i), DEEPUM_COPY_PAGES * PAGE_SIZE);
		cond_resched();
	}
}

void deepum_memory_zero(struct page *page)
{
	unsigned int i;

	for (i = 0; i < 1U << DEEPUM_BLOCK_ORDER; i += DEEPUM_COPY_PAGES) {
		memset(page_address(page + i), 0, DEEPUM_COPY_PAGES * PAGE_SIZE);
		cond_resched();
	}
}

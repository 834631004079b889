// SPDX-License-Identifier: GPL-2.0
/* A touch of UM space: wait until the block is there, map all of it. */
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/timekeeping.h>

#include "deepum.h"

#define DEEPUM_BLOCK_PAGES (1UL << DEEPUM_BLOCK_ORDER)

static u64 deepum_address(const struct vm_fault *vmf)
{
	return ((u64)vmf->pgoff << PAGE_SHIFT) + offset_in_page(vmf->real_address);
}

static void deepum_report(struct deepum_context *ctx, const struct vm_fault *vmf, u8 flags)
{
	struct deepum_event event = {
		.type = DEEPUM_EVENT_FAULT,
		.flags = flags,
		.address = deepum_address(vmf),
	};

	if (vmf->flags & FAULT_FLAG_WRITE)
		event.flags |= DEEPUM_ACCESS_WRITE;
	deepum_running(ctx, &event);
	deepum_ring_push(&ctx->ring, &event);
}

/* Put the block into the queue of faults, unless another thread already has. */
static void deepum_enqueue(struct deepum_context *ctx, struct deepum_block *block,
			   const struct vm_fault *vmf)
{
	lockdep_assert_held(&ctx->lock);
	block->waiters++;
	if (block->flags & DEEPUM_BLOCK_WAITING)
		return;
	WRITE_ONCE(block->flags, block->flags | DEEPUM_BLOCK_WAITING);
	block->fault_ns = ktime_get_ns();
	ctx->stats.waiting++;
	if (block->state == DEEPUM_STATE_INCOMING || block->queued) {
		block->flags |= DEEPUM_BLOCK_LATE;
		deepum_report(ctx, vmf, DEEPUM_ACCESS_LATE);
	} else {
		ctx->stats.faults++;
		deepum_report(ctx, vmf, 0);
	}
	if (block->state == DEEPUM_STATE_INCOMING)
		return;
	list_add_tail(&block->fault, &ctx->faults);
	wake_up(&ctx->work);
}

static void deepum_leave(struct deepum_context *ctx, struct deepum_block *block)
{
	lockdep_assert_held(&ctx->lock);
	if (--block->waiters == 0 && ctx->stuck) {
		WRITE_ONCE(ctx->stuck, false);
		wake_up(&ctx->work);
	}
}

static int deepum_await(struct deepum_context *ctx, struct deepum_block *block)
{
	return wait_event_killable(ctx->moved,
				   READ_ONCE(block->state) == DEEPUM_STATE_RESIDENT ||
				   !(READ_ONCE(block->flags) & DEEPUM_BLOCK_WAITING));
}

/*
 * Wait until the block is resident. Returns 0 with the context locked, or what the handler is to
 * return. The first time the address space is let go of meanwhile, so that other threads can map
 * and unmap; the second time it is held, and the block cannot leave before it is mapped.
 */
static vm_fault_t deepum_bring(struct vm_fault *vmf, struct deepum_context *ctx,
			       struct deepum_block *block)
{
	struct file *file = vmf->vma->vm_file;
	int error;

	for (;;) {
		if (deepum_block_reserve(ctx, block))
			return VM_FAULT_SIGBUS;
		mutex_lock(&ctx->lock);
		if (block->state == DEEPUM_STATE_RESIDENT)
			return 0;
		if (!block->store) { /* discarded since */
			mutex_unlock(&ctx->lock);
			continue;
		}
		if (vmf->flags & FAULT_FLAG_RETRY_NOWAIT) {
			mutex_unlock(&ctx->lock);
			return VM_FAULT_RETRY;
		}
		deepum_enqueue(ctx, block, vmf);
		if (fault_flag_allow_retry_first(vmf->flags)) {
			get_file(file);
			mutex_unlock(&ctx->lock);
			deepum_release_fault_lock(vmf);
			deepum_await(ctx, block);
			mutex_lock(&ctx->lock);
			deepum_leave(ctx, block);
			mutex_unlock(&ctx->lock);
			fput(file);
			return VM_FAULT_RETRY;
		}
		mutex_unlock(&ctx->lock);
		error = deepum_await(ctx, block);
		mutex_lock(&ctx->lock);
		deepum_leave(ctx, block);
		if (!error && block->state == DEEPUM_STATE_RESIDENT)
			return 0;
		mutex_unlock(&ctx->lock);
		if (error)
			return VM_FAULT_SIGBUS; /* the thread is being killed */
	}
}

static void deepum_mapped(struct deepum_context *ctx, struct deepum_block *block,
			  const struct vm_fault *vmf, bool dirty, u64 start)
{
	if (block->flags & DEEPUM_BLOCK_AHEAD) {
		block->flags &= ~DEEPUM_BLOCK_AHEAD;
		if (ctx->features & DEEPUM_FEATURE_TOUCH)
			deepum_report(ctx, vmf, DEEPUM_ACCESS_TOUCH);
		ctx->stats.served[DEEPUM_CAUSE_MAP]++;
		ctx->stats.served_ns[DEEPUM_CAUSE_MAP] += ktime_get_ns() - start;
	}
	if (dirty && !(block->flags & DEEPUM_STATE_DIRTY)) {
		if (block->flags & DEEPUM_BLOCK_MAPPED)
			ctx->stats.write_upgrades++;
		block->flags |= DEEPUM_STATE_DIRTY;
	}
	block->flags |= DEEPUM_BLOCK_MAPPED;
}

static struct deepum_block *deepum_block_at(struct deepum_context *ctx, struct vm_fault *vmf)
{
	return deepum_block_get(ctx, vmf->pgoff >> DEEPUM_BLOCK_ORDER);
}

/* Single pages: all 512 of the block, as far as the mapping reaches. */
static vm_fault_t deepum_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct deepum_context *ctx = vma->vm_private_data;
	struct deepum_block *block = deepum_block_at(ctx, vmf);
	unsigned long first = vmf->pgoff & ~(DEEPUM_BLOCK_PAGES - 1);
	unsigned long page, end, pfn;
	u64 start = ktime_get_ns();
	vm_fault_t result, one;
	pgprot_t prot;

	if (IS_ERR(block))
		return VM_FAULT_SIGBUS;
	result = deepum_bring(vmf, ctx, block);
	if (result)
		return result;
	pfn = page_to_pfn(block->frame);
	prot = vm_get_page_prot(vma->vm_flags); /* writable at once: all counts as written then */
	end = min(first + DEEPUM_BLOCK_PAGES, vma->vm_pgoff + vma_pages(vma));
	for (page = max(first, vma->vm_pgoff); page < end; page++) {
		one = vmf_insert_pfn_prot(vma,
					  vma->vm_start + ((page - vma->vm_pgoff) << PAGE_SHIFT),
					  pfn + page - first, prot);
		if (page == vmf->pgoff || one & VM_FAULT_OOM)
			result = one;
		if (one & VM_FAULT_ERROR)
			break;
	}
	deepum_mapped(ctx, block, vmf, vma->vm_flags & VM_WRITE, start);
	ctx->stats.mapped_small++;
	mutex_unlock(&ctx->lock);
	return result;
}

/* The whole block by one entry, where the mapping holds all of it, suitably aligned. */
static DEEPUM_HUGE_FAULT(deepum_huge_fault)
{
	struct vm_area_struct *vma = vmf->vma;
	struct deepum_context *ctx = vma->vm_private_data;
	unsigned long address = vmf->address & PMD_MASK;
	u64 start = ktime_get_ns();
	struct deepum_block *block;
	vm_fault_t result;
	bool write = vmf->flags & FAULT_FLAG_WRITE;

	if (!DEEPUM_IS_BLOCK_FAULT || address < vma->vm_start ||
	    address + PMD_SIZE > vma->vm_end)
		return VM_FAULT_FALLBACK;
	if (((vmf->address >> PAGE_SHIFT) ^ vmf->pgoff) & (DEEPUM_BLOCK_PAGES - 1))
		return VM_FAULT_FALLBACK;
	block = deepum_block_at(ctx, vmf);
	if (IS_ERR(block))
		return VM_FAULT_SIGBUS;
	result = deepum_bring(vmf, ctx, block);
	if (result)
		return result;
	/* Page tables are entered under the context's lock only, so this cannot change now. */
	if (deepum_pmd_is_table(READ_ONCE(*vmf->pmd))) {
		result = VM_FAULT_FALLBACK;
	} else {
		result = deepum_insert_pmd(vmf, page_to_pfn(block->frame), write);
		deepum_mapped(ctx, block, vmf, write, start);
		ctx->stats.mapped_huge++;
	}
	mutex_unlock(&ctx->lock);
	return result;
}

/* The first write through a page that was mapped for reading. */
static vm_fault_t deepum_pfn_mkwrite(struct vm_fault *vmf)
{
	struct deepum_context *ctx = vmf->vma->vm_private_data;
	struct deepum_block *block = deepum_block_at(ctx, vmf);
	vm_fault_t result = VM_FAULT_NOPAGE;

	if (IS_ERR(block))
		return VM_FAULT_SIGBUS;
	mutex_lock(&ctx->lock);
	if (block->state == DEEPUM_STATE_RESIDENT) {
		deepum_mapped(ctx, block, vmf, true, 0);
		result = 0;
	}
	mutex_unlock(&ctx->lock);
	return result;
}

static const struct vm_operations_struct deepum_vm_ops = {
	.fault = deepum_fault,
	.huge_fault = deepum_huge_fault,
	.pfn_mkwrite = deepum_pfn_mkwrite,
};

int deepum_map_space(struct deepum_context *ctx, struct vm_area_struct *vma)
{
	u64 pages = DEEPUM_SPACE_BYTES >> PAGE_SHIFT;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_pgoff >= pages || vma_pages(vma) > pages - vma->vm_pgoff)
		return -EINVAL;
	/* A child of fork() does not get the mapping: its parent's frames are not its own. */
	vm_flags_set(vma, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	vma->vm_private_data = ctx;
	vma->vm_ops = &deepum_vm_ops;
	return 0;
}

// SPDX-License-Identifier: GPL-2.0
/* A context's life. */
#include <linux/fs.h>
#include <linux/log2.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/time64.h>
#include <linux/vmalloc.h>

#include "deepum.h"

struct deepum_context *deepum_context_create(struct inode *inode)
{
	struct deepum_context *ctx = kzalloc(sizeof(*ctx), GFP_KERNEL_ACCOUNT);

	if (!ctx)
		return ERR_PTR(-ENOMEM);
	ctx->inode = inode;
	mutex_init(&ctx->lock);
	xa_init(&ctx->blocks);
	INIT_LIST_HEAD(&ctx->migrated);
	INIT_LIST_HEAD(&ctx->inactive);
	INIT_LIST_HEAD(&ctx->faults);
	INIT_LIST_HEAD(&ctx->observer);
	init_waitqueue_head(&ctx->work);
	init_waitqueue_head(&ctx->moved);
	init_waitqueue_head(&ctx->done);
	spin_lock_init(&ctx->ring.lock);
	init_waitqueue_head(&ctx->ring.readers);
	return ctx;
}

static void deepum_context_unset(struct deepum_context *ctx)
{
	while (ctx->free_count)
		deepum_memory_free(ctx->free_frames[--ctx->free_count]);
	kvfree(ctx->free_frames);
	kvfree(ctx->urgent.commands);
	kvfree(ctx->out.commands);
	kvfree(ctx->in.commands);
	kvfree(ctx->launches);
	deepum_ring_destroy(&ctx->ring);
	ctx->free_frames = NULL;
	ctx->urgent.commands = NULL;
	ctx->out.commands = NULL;
	ctx->in.commands = NULL;
	ctx->launches = NULL;
}

static int deepum_queue_create(struct deepum_queue *queue)
{
	queue->commands = kvcalloc(DEEPUM_MAX_BATCH, sizeof(*queue->commands), GFP_KERNEL_ACCOUNT);
	return queue->commands ? 0 : -ENOMEM;
}

/* All that the paths of faults and moves need is allocated here, in the caller's name. */
static int deepum_context_allocate(struct deepum_context *ctx, u32 frames, u32 events)
{
	struct page *page;

	if (deepum_ring_create(&ctx->ring, events))
		return -ENOMEM;
	ctx->launches = kvcalloc(DEEPUM_MAX_LAUNCHES, sizeof(u64), GFP_KERNEL_ACCOUNT);
	ctx->free_frames = kvcalloc(frames, sizeof(struct page *), GFP_KERNEL_ACCOUNT);
	if (!ctx->launches || !ctx->free_frames || deepum_queue_create(&ctx->urgent) ||
	    deepum_queue_create(&ctx->out) || deepum_queue_create(&ctx->in))
		return -ENOMEM;
	while (ctx->free_count < frames) {
		if (fatal_signal_pending(current))
			return -EINTR;
		page = deepum_memory_alloc();
		if (!page)
			return -ENOMEM;
		ctx->free_frames[ctx->free_count++] = page;
		cond_resched();
	}
	return 0;
}

int deepum_context_setup(struct deepum_context *ctx, const struct deepum_setup *setup)
{
	u32 events = setup->ring_events ? setup->ring_events : 4096;
	struct task_struct *thread;
	int error;

	if (setup->flags || setup->reserved || setup->features & ~DEEPUM_FEATURES)
		return -EINVAL;
	if (setup->frames < DEEPUM_MIN_FRAMES || setup->frames > DEEPUM_MAX_FRAMES)
		return -EINVAL;
	if (!is_power_of_2(events) || events < DEEPUM_MIN_RING || events > DEEPUM_MAX_RING)
		return -EINVAL;

	if (mutex_lock_killable(&ctx->lock))
		return -EINTR;
	if (ctx->ready) {
		error = -EBUSY;
		goto out;
	}
	error = deepum_context_allocate(ctx, setup->frames, events);
	if (error)
		goto fail;
	ctx->features = setup->features;
	ctx->frames = setup->frames;
	ctx->patience_ns = (u64)setup->patience_us * NSEC_PER_USEC;
	thread = kthread_create(deepum_migrate, ctx, "deepum/%d", current->tgid);
	if (IS_ERR(thread)) {
		error = PTR_ERR(thread);
		goto fail;
	}
	ctx->thread = thread;
	wake_up_process(thread);
	/* Pairs with the acquiring load in deepum_ready. */
	smp_store_release(&ctx->ready, true);
	goto out;

fail:
	deepum_context_unset(ctx);
out:
	mutex_unlock(&ctx->lock);
	return error;
}

/* The last reference to the file is gone, and with it every mapping and every waiting thread. */
void deepum_context_destroy(struct deepum_context *ctx)
{
	deepum_uvm_detach(ctx);
	if (ctx->thread)
		kthread_stop(ctx->thread);
	deepum_block_free_all(ctx);
	deepum_context_unset(ctx);
	iput(ctx->inode);
	kfree(ctx);
}

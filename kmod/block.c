// SPDX-License-Identifier: GPL-2.0
/* Blocks: finding them, their lists, and who has to go. */
#include <linux/slab.h>

#include "deepum.h"

static struct kmem_cache *deepum_block_cache;

int deepum_block_init(void)
{
	deepum_block_cache = KMEM_CACHE(deepum_block, SLAB_ACCOUNT);
	return deepum_block_cache ? 0 : -ENOMEM;
}

void deepum_block_exit(void)
{
	kmem_cache_destroy(deepum_block_cache);
}

/* Find the block or make it. A block stays until its context goes. */
struct deepum_block *deepum_block_get(struct deepum_context *ctx, u64 index)
{
	struct deepum_block *block, *found;

	block = xa_load(&ctx->blocks, index);
	if (block)
		return block;
	block = kmem_cache_zalloc(deepum_block_cache, GFP_KERNEL);
	if (!block)
		return ERR_PTR(-ENOMEM);
	block->index = index;
	INIT_LIST_HEAD(&block->order);
	INIT_LIST_HEAD(&block->fault);
	found = xa_cmpxchg(&ctx->blocks, index, NULL, block, GFP_KERNEL_ACCOUNT);
	if (!found)
		return block;
	kmem_cache_free(deepum_block_cache, block);
	return xa_is_err(found) ? ERR_PTR(xa_err(found)) : found;
}

/*
 * Make sure that the block has a place in the host store, before it gets a frame: so an eviction
 * never needs memory. Called without the lock, in the name of whoever wants the block.
 */
int deepum_block_reserve(struct deepum_context *ctx, struct deepum_block *block)
{
	struct page *page;

	if (READ_ONCE(block->store))
		return 0;
	page = deepum_memory_alloc();
	if (!page)
		return -ENOMEM;
	mutex_lock(&ctx->lock);
	if (!block->store) {
		WRITE_ONCE(block->store, page);
		ctx->stats.host_blocks++;
		page = NULL;
	}
	mutex_unlock(&ctx->lock);
	deepum_memory_free(page);
	return 0;
}

/* The block's contents are in its frame: from now on it may be mapped. */
void deepum_block_link(struct deepum_context *ctx, struct deepum_block *block)
{
	lockdep_assert_held(&ctx->lock);
	list_add_tail(&block->order, block->flags & DEEPUM_STATE_INACTIVE ? &ctx->inactive :
									    &ctx->migrated);
	WRITE_ONCE(block->state, DEEPUM_STATE_RESIDENT);
}

/* Inactive blocks go first, then the least recently migrated; none that a thread waits for. */
struct deepum_block *deepum_block_victim(struct deepum_context *ctx)
{
	struct deepum_block *block;

	lockdep_assert_held(&ctx->lock);
	list_for_each_entry(block, &ctx->inactive, order)
		if (!block->waiters)
			return block;
	list_for_each_entry(block, &ctx->migrated, order)
		if (!block->waiters)
			return block;
	return NULL;
}

/* Blocks that are not known have no contents: there is nothing to remember of them. */
void deepum_block_activate(struct deepum_context *ctx, u64 first, u64 end)
{
	struct deepum_block *block;
	unsigned long index;

	lockdep_assert_held(&ctx->lock);
	xa_for_each_range(&ctx->blocks, index, block, first, end - 1) {
		if (!(block->flags & DEEPUM_STATE_INACTIVE))
			continue;
		block->flags &= ~DEEPUM_STATE_INACTIVE;
		if (block->state == DEEPUM_STATE_RESIDENT)
			list_move_tail(&block->order, &ctx->migrated);
	}
}

void deepum_block_deactivate(struct deepum_context *ctx, u64 first, u64 end, bool unmanage)
{
	struct deepum_block *block;
	unsigned long index;

	lockdep_assert_held(&ctx->lock);
	if (first >= end)
		return;
	xa_for_each_range(&ctx->blocks, index, block, first, end - 1) {
		if (unmanage)
			block->flags &= ~DEEPUM_BLOCK_MANAGED;
		if (block->flags & DEEPUM_STATE_INACTIVE)
			continue;
		block->flags |= DEEPUM_STATE_INACTIVE;
		if (block->state == DEEPUM_STATE_RESIDENT)
			list_move_tail(&block->order, &ctx->inactive);
	}
}

void deepum_block_free_all(struct deepum_context *ctx)
{
	struct deepum_block *block;
	unsigned long index;

	xa_for_each(&ctx->blocks, index, block) {
		deepum_memory_free(block->frame);
		deepum_memory_free(block->store);
		kmem_cache_free(deepum_block_cache, block);
		cond_resched();
	}
	xa_destroy(&ctx->blocks);
}

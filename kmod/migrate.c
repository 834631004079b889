// SPDX-License-Identifier: GPL-2.0
/* The migration thread: the only one that moves blocks. Faults go before commands, always. */
#include <linux/fs.h>
#include <linux/jiffies.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/timekeeping.h>

#include "deepum.h"

/* Functions here are called with the context locked; they let go of it while data moves. */

static void deepum_served(struct deepum_context *ctx, struct deepum_block *block, u32 cause)
{
	if (!(block->flags & DEEPUM_BLOCK_WAITING))
		return;
	if (block->flags & DEEPUM_BLOCK_LATE)
		cause = DEEPUM_CAUSE_LATE;
	ctx->stats.served[cause]++;
	ctx->stats.served_ns[cause] += ktime_get_ns() - block->fault_ns;
}

/* Let go who waits for the block, once woken. */
static void deepum_released(struct deepum_context *ctx, struct deepum_block *block)
{
	if (!(block->flags & DEEPUM_BLOCK_WAITING))
		return;
	list_del_init(&block->fault); /* a demanded prefetch may have come first */
	block->flags &= ~DEEPUM_BLOCK_LATE;
	WRITE_ONCE(block->flags, block->flags & ~DEEPUM_BLOCK_WAITING);
	ctx->stats.waiting--;
}

/* Bring a block into a free frame. */
static void deepum_move_in(struct deepum_context *ctx, struct deepum_block *block, u8 flags,
			   u32 cause)
{
	bool filled = block->flags & DEEPUM_STATE_ON_HOST;
	u64 start;

	block->frame = ctx->free_frames[--ctx->free_count];
	WRITE_ONCE(block->state, DEEPUM_STATE_INCOMING);
	mutex_unlock(&ctx->lock);
	start = ktime_get_ns();
	if (filled)
		deepum_memory_copy(block->frame, block->store);
	else
		deepum_memory_zero(block->frame);
	start = ktime_get_ns() - start;
	mutex_lock(&ctx->lock);
	ctx->stats.copy_ns += start;
	if (filled)
		ctx->stats.copied_in++;
	else
		ctx->stats.zeroed++;
	if (cause == DEEPUM_CAUSE_COPY && !filled)
		cause = DEEPUM_CAUSE_ZERO;
	deepum_served(ctx, block, cause);
	block->flags &= ~(DEEPUM_STATE_DIRTY | DEEPUM_BLOCK_MAPPED);
	if (!(flags & DEEPUM_MOVE_DEMAND) && !(block->flags & DEEPUM_BLOCK_WAITING))
		block->flags |= DEEPUM_BLOCK_AHEAD;
	deepum_released(ctx, block);
	deepum_block_link(ctx, block);
	deepum_say(ctx, DEEPUM_EVENT_ARRIVED, block->index, flags, 0);
	if (block->waiters)
		wake_up_all(&ctx->moved);
}

/* Take a resident block's mappings away. From here on a touch of it waits. */
static void deepum_unmap(struct deepum_context *ctx, struct deepum_block *block)
{
	list_del_init(&block->order);
	WRITE_ONCE(block->state, DEEPUM_STATE_OUTGOING);
	mutex_unlock(&ctx->lock);
	unmap_mapping_range(ctx->inode->i_mapping, (loff_t)block->index << DEEPUM_BLOCK_SHIFT,
			    DEEPUM_BLOCK_BYTES, 1);
	mutex_lock(&ctx->lock);
}

static void deepum_vacate(struct deepum_context *ctx, struct deepum_block *block)
{
	ctx->free_frames[ctx->free_count++] = block->frame;
	block->frame = NULL;
	block->flags &= ~(DEEPUM_STATE_DIRTY | DEEPUM_BLOCK_AHEAD | DEEPUM_BLOCK_MAPPED);
	WRITE_ONCE(block->state, DEEPUM_STATE_ABSENT);
}

static void deepum_evict(struct deepum_context *ctx, struct deepum_block *block, u8 flags)
{
	u64 start;

	deepum_unmap(ctx, block);
	/*
	 * Nobody can write to it now. If its owner says now that it is active again, what it
	 * writes then goes to another frame.
	 */
	if (ctx->features & DEEPUM_FEATURE_DROP_INACTIVE &&
	    block->flags & DEEPUM_STATE_INACTIVE) {
		block->flags &= ~DEEPUM_STATE_ON_HOST;
		flags |= DEEPUM_MOVE_DROPPED;
		ctx->stats.dropped_inactive++;
	} else if (block->flags & DEEPUM_STATE_DIRTY) {
		mutex_unlock(&ctx->lock);
		start = ktime_get_ns();
		deepum_memory_copy(block->store, block->frame);
		start = ktime_get_ns() - start;
		mutex_lock(&ctx->lock);
		block->flags |= DEEPUM_STATE_ON_HOST;
		ctx->stats.copy_ns += start;
		ctx->stats.copied_out++;
	} else {
		ctx->stats.left_clean++;
	}
	if (flags & DEEPUM_MOVE_DEMAND)
		ctx->stats.evicted_demand++;
	else
		ctx->stats.evicted++;
	deepum_vacate(ctx, block);
	deepum_say(ctx, DEEPUM_EVENT_DEPARTED, block->index, flags, 1);
}

/* Every command is answered with an event for each block: how things stand now. */
static void deepum_answer(struct deepum_context *ctx, struct deepum_block *block, bool refused)
{
	u8 flags = refused ? DEEPUM_MOVE_REFUSED : 0;

	if (block->state == DEEPUM_STATE_RESIDENT)
		deepum_say(ctx, DEEPUM_EVENT_ARRIVED, block->index, flags, 0);
	else
		deepum_say(ctx, DEEPUM_EVENT_DEPARTED, block->index, flags, 1);
}

/* Evict a block that nobody waits for. Returns whether a frame has come free. */
static bool deepum_make_room(struct deepum_context *ctx)
{
	struct deepum_block *victim = deepum_block_victim(ctx);

	if (victim)
		deepum_evict(ctx, victim, DEEPUM_MOVE_DEMAND);
	return victim;
}

static void deepum_prefetch(struct deepum_context *ctx, struct deepum_block *block, bool demand)
{
	block->queued--;
	if (block->state == DEEPUM_STATE_RESIDENT) {
		deepum_answer(ctx, block, false);
		return;
	}
	if (!ctx->free_count && !(demand && deepum_make_room(ctx))) {
		ctx->stats.prefetch_refused++;
		deepum_answer(ctx, block, true);
		return;
	}
	ctx->stats.prefetched++;
	deepum_move_in(ctx, block, 0, DEEPUM_CAUSE_COPY);
}

/* Only what the program has declared inactive is dropped, whatever a policy believes. */
static void deepum_discard(struct deepum_context *ctx, struct deepum_block *block)
{
	struct page *store = NULL;

	if (block->flags & DEEPUM_STATE_INACTIVE && block->state == DEEPUM_STATE_RESIDENT) {
		deepum_unmap(ctx, block);
		if (block->flags & DEEPUM_STATE_INACTIVE)
			deepum_vacate(ctx, block);
		else /* it has become active meanwhile: all is as it was */
			deepum_block_link(ctx, block);
	}
	if (!(block->flags & DEEPUM_STATE_INACTIVE)) {
		ctx->stats.discard_refused++;
		deepum_answer(ctx, block, true);
		wake_up_all(&ctx->moved);
		return;
	}
	block->flags &= ~DEEPUM_STATE_ON_HOST;
	if (block->store && !block->queued &&
	    !(block->flags & (DEEPUM_BLOCK_WAITING | DEEPUM_BLOCK_MANAGED))) {
		store = block->store;
		WRITE_ONCE(block->store, NULL);
		ctx->stats.host_blocks--;
	}
	ctx->stats.discarded++;
	deepum_say(ctx, DEEPUM_EVENT_DEPARTED, block->index, DEEPUM_MOVE_DROPPED, 1);
	deepum_memory_free(store);
}

/* Carry out the next block's worth of the queue. */
static void deepum_carry_out(struct deepum_context *ctx, struct deepum_queue *queue)
{
	struct deepum_command command = queue->commands[queue->tail % DEEPUM_MAX_BATCH].command;
	unsigned long index = command.block + queue->position;
	unsigned long last = command.block + command.count - 1;
	struct deepum_block *block;

	block = xa_find(&ctx->blocks, &index, last, XA_PRESENT);
	if (block) {
		queue->position = index + 1 - command.block;
		switch (command.type) {
		case DEEPUM_COMMAND_PREFETCH:
			deepum_prefetch(ctx, block, command.flags & DEEPUM_COMMAND_DEMAND);
			break;
		case DEEPUM_COMMAND_EVICT:
			if (block->state != DEEPUM_STATE_RESIDENT || block->waiters)
				deepum_answer(ctx, block, block->waiters);
			else
				deepum_evict(ctx, block, 0);
			break;
		case DEEPUM_COMMAND_DISCARD:
			deepum_discard(ctx, block);
			break;
		}
	}
	if (!block || index >= last) {
		queue->position = 0;
		WRITE_ONCE(queue->tail, queue->tail + 1);
		wake_up_all(&ctx->done);
	}
}

/*
 * Whether the first of the faults, for which there is no frame, is to wait for the policy to name
 * a victim. One that did not answer is not waited for again before it submits something.
 */
static bool deepum_consult(struct deepum_context *ctx, const struct deepum_block *block)
{
	u64 deadline = block->fault_ns + ctx->patience_ns;

	if (!ctx->patience_ns || ctx->unanswered || ctx->passed)
		return false;
	if (ktime_get_ns() < deadline) {
		ctx->deadline_ns = deadline;
		return true;
	}
	ctx->unanswered = true;
	return false;
}

/* Take the first of the faults. */
static void deepum_serve_fault(struct deepum_context *ctx)
{
	struct deepum_block *block = list_first_entry(&ctx->faults, struct deepum_block, fault);
	u32 cause = DEEPUM_CAUSE_COPY;

	ctx->deadline_ns = 0;
	if (!ctx->free_count && block->state == DEEPUM_STATE_ABSENT && block->waiters) {
		/* What is to leave anyway leaves now. */
		if (!deepum_queue_empty(&ctx->urgent)) {
			deepum_carry_out(ctx, &ctx->urgent);
			return;
		}
		if (!deepum_queue_empty(&ctx->out)) {
			deepum_carry_out(ctx, &ctx->out);
			return;
		}
		if (deepum_consult(ctx, block))
			return;
		if (!deepum_make_room(ctx)) {
			ctx->stuck = true;
			return;
		}
		cause = DEEPUM_CAUSE_EVICT;
	}
	ctx->passed = false;
	if (block->state == DEEPUM_STATE_ABSENT && block->store && block->waiters) {
		deepum_move_in(ctx, block, DEEPUM_MOVE_DEMAND, cause);
		return;
	}
	/* Nobody waits any more, or it was discarded since: who still waits asks again. */
	deepum_released(ctx, block);
	deepum_answer(ctx, block, true);
	wake_up_all(&ctx->moved);
}

/* The commands without haste go in the order in which they came. */
static bool deepum_out_is_next(struct deepum_context *ctx)
{
	if (deepum_queue_empty(&ctx->out) || deepum_queue_empty(&ctx->in))
		return deepum_queue_empty(&ctx->in) && !deepum_queue_empty(&ctx->out);
	return ctx->out.commands[ctx->out.tail % DEEPUM_MAX_BATCH].order <
	       ctx->in.commands[ctx->in.tail % DEEPUM_MAX_BATCH].order;
}

static bool deepum_has_work(struct deepum_context *ctx)
{
	u64 deadline = READ_ONCE(ctx->deadline_ns);
	bool commands = !deepum_queue_empty(&ctx->urgent) || !deepum_queue_empty(&ctx->out);

	if (list_empty_careful(&ctx->faults))
		return commands || !deepum_queue_empty(&ctx->in);
	if (READ_ONCE(ctx->stuck))
		return false;
	return !deadline || commands || READ_ONCE(ctx->passed) || ktime_get_ns() >= deadline;
}

static void deepum_sleep(struct deepum_context *ctx)
{
	u64 now = ktime_get_ns(), deadline = ctx->deadline_ns;

	if (deadline && now < deadline)
		wait_event_idle_timeout(ctx->work, deepum_has_work(ctx) || kthread_should_stop(),
					nsecs_to_jiffies(deadline - now) + 1);
	else
		wait_event_idle(ctx->work, deepum_has_work(ctx) || kthread_should_stop());
}

int deepum_migrate(void *context)
{
	struct deepum_context *ctx = context;

	while (!kthread_should_stop()) {
		deepum_sleep(ctx);
		mutex_lock(&ctx->lock);
		if (!list_empty(&ctx->faults)) {
			if (!ctx->stuck)
				deepum_serve_fault(ctx);
		} else if (!deepum_queue_empty(&ctx->urgent)) {
			deepum_carry_out(ctx, &ctx->urgent);
		} else if (deepum_out_is_next(ctx)) {
			deepum_carry_out(ctx, &ctx->out);
		} else if (!deepum_queue_empty(&ctx->in)) {
			deepum_carry_out(ctx, &ctx->in);
		}
		mutex_unlock(&ctx->lock);
		cond_resched();
	}
	return 0;
}

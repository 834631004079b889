// SPDX-License-Identifier: GPL-2.0
/* What a program says of itself: launches, their ends, memory coming into use and out of it. */
#include <linux/math64.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "deepum.h"

#define DEEPUM_CHUNK 8 /* events read at a time */

/* Mark an event with the launch that runs; nothing runs: zeros. Called with the lock held. */
void deepum_running(const struct deepum_context *ctx, struct deepum_event *event)
{
	if (ctx->stats.launched == ctx->stats.completed)
		return;
	event->seq = ctx->stats.completed + 1;
	event->exec_id = ctx->launches[event->seq % DEEPUM_MAX_LAUNCHES];
}

static bool deepum_event_valid(const struct deepum_event *event)
{
	bool range = event->bytes && event->address < DEEPUM_SPACE_BYTES &&
		     event->bytes <= DEEPUM_SPACE_BYTES - event->address;

	if (event->device || event->tier || event->flags || event->time_ns || event->reserved)
		return false;
	switch (event->type) {
	case DEEPUM_EVENT_MANAGE:
	case DEEPUM_EVENT_UNMANAGE:
	case DEEPUM_EVENT_ALLOC:
	case DEEPUM_EVENT_FREE:
	case DEEPUM_EVENT_RANGE:
		return range && !event->exec_id && !event->seq;
	case DEEPUM_EVENT_LAUNCH:
	case DEEPUM_EVENT_COMPLETE:
		return !event->address && !event->bytes && !event->id;
	default:
		return false;
	}
}

/* Give every block of the range a place on the host; what has one keeps it if this fails. */
static int deepum_manage(struct deepum_context *ctx, const struct deepum_event *event)
{
	u64 index, last = (event->address + event->bytes - 1) >> DEEPUM_BLOCK_SHIFT;
	struct deepum_block *block;
	int error;

	for (index = event->address >> DEEPUM_BLOCK_SHIFT; index <= last; index++) {
		block = deepum_block_get(ctx, index);
		if (IS_ERR(block))
			return PTR_ERR(block);
		if (mutex_lock_killable(&ctx->lock))
			return -EINTR;
		block->flags |= DEEPUM_BLOCK_MANAGED; /* first, so that no discard takes it away */
		mutex_unlock(&ctx->lock);
		error = deepum_block_reserve(ctx, block);
		if (error)
			return error;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}

static int deepum_notify_one(struct deepum_context *ctx, struct deepum_event *event)
{
	/* The blocks that the range overlaps, and those that lie wholly inside. */
	u64 outer = event->address >> DEEPUM_BLOCK_SHIFT;
	u64 outer_end = DIV_ROUND_UP_ULL(event->address + event->bytes, DEEPUM_BLOCK_BYTES);
	u64 inner = DIV_ROUND_UP_ULL(event->address, DEEPUM_BLOCK_BYTES);
	u64 inner_end = (event->address + event->bytes) >> DEEPUM_BLOCK_SHIFT;

	lockdep_assert_held(&ctx->lock);
	switch (event->type) {
	case DEEPUM_EVENT_ALLOC:
		deepum_block_activate(ctx, outer, outer_end);
		break;
	case DEEPUM_EVENT_FREE:
		deepum_block_deactivate(ctx, inner, inner_end, false);
		break;
	case DEEPUM_EVENT_UNMANAGE:
		deepum_block_deactivate(ctx, inner, inner_end, true);
		break;
	case DEEPUM_EVENT_LAUNCH:
		if (event->seq && event->seq != ctx->stats.launched + 1)
			return -EINVAL;
		if (ctx->stats.launched - ctx->stats.completed == DEEPUM_MAX_LAUNCHES)
			return -EAGAIN;
		event->seq = ++ctx->stats.launched;
		ctx->launches[event->seq % DEEPUM_MAX_LAUNCHES] = event->exec_id;
		break;
	case DEEPUM_EVENT_COMPLETE:
		if (event->seq > ctx->stats.launched || event->exec_id)
			return -EINVAL;
		if (event->seq > ctx->stats.completed)
			ctx->stats.completed = event->seq;
		break;
	}
	deepum_ring_push(&ctx->ring, event);
	return 0;
}

static int deepum_notify_locked(struct deepum_context *ctx, struct deepum_event *event)
{
	int error;

	if (!deepum_event_valid(event))
		return -EINVAL;
	if (event->type == DEEPUM_EVENT_MANAGE) {
		error = deepum_manage(ctx, event);
		if (error)
			return error;
	}
	if (mutex_lock_killable(&ctx->lock))
		return -EINTR;
	error = deepum_notify_one(ctx, event);
	mutex_unlock(&ctx->lock);
	return error;
}

int deepum_notify(struct deepum_context *ctx, struct deepum_batch *batch)
{
	const struct deepum_event __user *user = u64_to_user_ptr(batch->records);
	struct deepum_event events[DEEPUM_CHUNK];
	u32 i, count;
	int error;

	if (batch->flags || batch->count > DEEPUM_MAX_BATCH || batch->done)
		return -EINVAL;
	while (batch->done < batch->count) {
		count = min_t(u32, batch->count - batch->done, DEEPUM_CHUNK);
		if (copy_from_user(events, user + batch->done, count * sizeof(*events)))
			return -EFAULT;
		for (i = 0; i < count; i++) {
			error = deepum_notify_locked(ctx, &events[i]);
			if (error)
				return error;
			batch->done++;
		}
	}
	return 0;
}

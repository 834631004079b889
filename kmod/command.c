// SPDX-License-Identifier: GPL-2.0
/* Commands in: what a policy wants done. */
#include <linux/uaccess.h>

#include "deepum.h"

#define DEEPUM_CHUNK 16 /* commands read at a time */

static bool deepum_command_valid(const struct deepum_context *ctx,
				 const struct deepum_command *command)
{
	if (command->device || command->tier || command->reserved || !command->count ||
	    command->flags & ~(DEEPUM_COMMAND_DEMAND | DEEPUM_COMMAND_CLEAN))
		return false;
	if (command->block >= DEEPUM_SPACE_BLOCKS ||
	    command->count > DEEPUM_SPACE_BLOCKS - command->block)
		return false;
	switch (command->type) {
	case DEEPUM_COMMAND_PREFETCH:
		return command->count <= ctx->frames;
	case DEEPUM_COMMAND_EVICT:
	case DEEPUM_COMMAND_DISCARD:
		return true;
	default:
		return false;
	}
}

/* Every block of a prefetch exists and has a place on the host; called with the lock held. */
static bool deepum_reserved(struct deepum_context *ctx, const struct deepum_command *command)
{
	struct deepum_block *block;
	u32 i;

	for (i = 0; i < command->count; i++) {
		block = xa_load(&ctx->blocks, command->block + i);
		if (!block->store)
			return false;
	}
	return true;
}

static int deepum_reserve_all(struct deepum_context *ctx, const struct deepum_command *command)
{
	struct deepum_block *block;
	int error;
	u32 i;

	for (i = 0; i < command->count; i++) {
		block = deepum_block_get(ctx, command->block + i);
		if (IS_ERR(block))
			return PTR_ERR(block);
		error = deepum_block_reserve(ctx, block);
		if (error)
			return error;
		cond_resched();
	}
	return 0;
}

static int deepum_submit_one(struct deepum_context *ctx, const struct deepum_command *command)
{
	struct deepum_queue *queue = &ctx->out;
	int error = 0;
	u32 i;

	if (command->flags & DEEPUM_COMMAND_DEMAND)
		queue = &ctx->urgent;
	else if (command->type == DEEPUM_COMMAND_PREFETCH)
		queue = &ctx->in;
	if (!deepum_command_valid(ctx, command))
		return -EINVAL;
	do {
		if (command->type == DEEPUM_COMMAND_PREFETCH)
			error = deepum_reserve_all(ctx, command);
		if (error)
			return error;
		if (mutex_lock_killable(&ctx->lock))
			return -EINTR;
		if (command->type != DEEPUM_COMMAND_PREFETCH || deepum_reserved(ctx, command))
			break;
		mutex_unlock(&ctx->lock);
	} while (true);

	if (queue->head - queue->tail == DEEPUM_MAX_BATCH) {
		error = -EAGAIN;
	} else {
		queue->commands[queue->head % DEEPUM_MAX_BATCH] = (struct deepum_queued){
			.command = *command,
			.order = ++ctx->order,
		};
		WRITE_ONCE(queue->head, queue->head + 1);
		if (command->type == DEEPUM_COMMAND_PREFETCH)
			for (i = 0; i < command->count; i++)
				((struct deepum_block *)xa_load(&ctx->blocks,
								command->block + i))->queued++;
	}
	mutex_unlock(&ctx->lock);
	return error;
}

static int deepum_submit_all(struct deepum_context *ctx, struct deepum_batch *batch)
{
	const struct deepum_command __user *user = u64_to_user_ptr(batch->records);
	struct deepum_command commands[DEEPUM_CHUNK];
	u32 i, count;
	int error;

	while (batch->done < batch->count) {
		count = min_t(u32, batch->count - batch->done, DEEPUM_CHUNK);
		if (copy_from_user(commands, user + batch->done, count * sizeof(*commands)))
			return -EFAULT;
		for (i = 0; i < count; i++) {
			error = deepum_submit_one(ctx, &commands[i]);
			if (error)
				return error;
			batch->done++;
		}
	}
	return 0;
}

int deepum_submit(struct deepum_context *ctx, struct deepum_batch *batch)
{
	u64 urgent, out, in;
	int error;

	if (batch->flags & ~(DEEPUM_SUBMIT_WAIT | DEEPUM_SUBMIT_PASS) ||
	    batch->count > DEEPUM_MAX_BATCH || batch->done)
		return -EINVAL;
	error = deepum_submit_all(ctx, batch);
	if (batch->flags & DEEPUM_SUBMIT_PASS) {
		mutex_lock(&ctx->lock);
		WRITE_ONCE(ctx->passed, ctx->stats.waiting > 0);
		mutex_unlock(&ctx->lock);
	}
	if (batch->done || batch->flags & DEEPUM_SUBMIT_PASS) {
		WRITE_ONCE(ctx->unanswered, false);
		wake_up(&ctx->work);
	}
	if (error)
		return error;
	if (!(batch->flags & DEEPUM_SUBMIT_WAIT))
		return 0;
	mutex_lock(&ctx->lock);
	urgent = ctx->urgent.head;
	out = ctx->out.head;
	in = ctx->in.head;
	mutex_unlock(&ctx->lock);
	/* Not restarted: the commands would be submitted twice. */
	return wait_event_interruptible(ctx->done,
					READ_ONCE(ctx->urgent.tail) >= urgent &&
					READ_ONCE(ctx->out.tail) >= out &&
					READ_ONCE(ctx->in.tail) >= in) ? -EINTR : 0;
}

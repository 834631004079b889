// SPDX-License-Identifier: GPL-2.0
/* Requests: checked here, done elsewhere. */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/uaccess.h>

#include "deepum.h"

#define DEEPUM_REQUESTS 8
#define DEEPUM_CHUNK 256 /* blocks reported at a time */

static int deepum_get_features(struct deepum_features *features)
{
	if (features->flags)
		return -EINVAL;
	features->features = DEEPUM_FEATURES;
	features->requests = (1ULL << DEEPUM_REQUESTS) - 1;
	features->space_bytes = DEEPUM_SPACE_BYTES;
	return 0;
}

static int deepum_get_stats(struct deepum_context *ctx, struct deepum_stats *stats)
{
	u32 size = stats->size;

	if (stats->flags)
		return -EINVAL;
	if (mutex_lock_killable(&ctx->lock))
		return -EINTR;
	*stats = ctx->stats;
	stats->frames = ctx->frames;
	stats->frames_free = ctx->free_count;
	stats->queued = ctx->urgent.head - ctx->urgent.tail + ctx->out.head - ctx->out.tail +
			ctx->in.head - ctx->in.tail;
	deepum_ring_sync(&ctx->ring, &stats->events, &stats->events_dropped);
	mutex_unlock(&ctx->lock);
	stats->size = size;
	return 0;
}

static int deepum_get_residency(struct deepum_context *ctx, const struct deepum_residency *where)
{
	u8 __user *user = u64_to_user_ptr(where->states);
	u8 states[DEEPUM_CHUNK];
	struct deepum_block *block;
	u32 i, count, done;

	if (where->flags || where->reserved || where->block >= DEEPUM_SPACE_BLOCKS ||
	    where->count > DEEPUM_SPACE_BLOCKS - where->block)
		return -EINVAL;
	for (done = 0; done < where->count; done += count) {
		count = min_t(u32, where->count - done, DEEPUM_CHUNK);
		if (mutex_lock_killable(&ctx->lock))
			return -EINTR;
		for (i = 0; i < count; i++) {
			block = xa_load(&ctx->blocks, where->block + done + i);
			states[i] = block ? block->state |
					    (block->flags & (DEEPUM_STATE_INACTIVE |
							     DEEPUM_STATE_DIRTY |
							     DEEPUM_STATE_ON_HOST)) : 0;
		}
		mutex_unlock(&ctx->lock);
		if (copy_to_user(user + done, states, count))
			return -EFAULT;
		cond_resched();
	}
	return 0;
}

static int deepum_set_eventfd(struct deepum_context *ctx, const struct deepum_eventfd *request)
{
	if (request->flags || request->reserved)
		return -EINVAL;
	return deepum_ring_eventfd(&ctx->ring, request->fd);
}

static int deepum_observe(struct deepum_context *ctx, const struct deepum_uvm *layout)
{
	if (layout->flags & ~DEEPUM_UVM_DETACH)
		return -EINVAL;
	if (layout->flags & DEEPUM_UVM_DETACH) {
		deepum_uvm_detach(ctx);
		return 0;
	}
	return capable(CAP_SYS_ADMIN) ? deepum_uvm_attach(ctx, layout) : -EPERM;
}

/* What a request's structure holds, and the least of it that a program may give. */
union deepum_argument {
	u32 size;
	struct deepum_features features;
	struct deepum_setup setup;
	struct deepum_batch batch;
	struct deepum_eventfd eventfd;
	struct deepum_residency residency;
	struct deepum_stats stats;
	struct deepum_uvm uvm;
};

#define DEEPUM_NUMBER(request) _IOC_NR(request)
#define DEEPUM_WITHOUT_SIZE(request) ((request) & ~IOCSIZE_MASK)

static const struct {
	unsigned int request;
	u32 bytes;
} deepum_requests[DEEPUM_REQUESTS] = {
	[DEEPUM_NUMBER(DEEPUM_IOC_FEATURES)] = { DEEPUM_IOC_FEATURES,
						 sizeof(struct deepum_features) },
	[DEEPUM_NUMBER(DEEPUM_IOC_SETUP)] = { DEEPUM_IOC_SETUP, sizeof(struct deepum_setup) },
	[DEEPUM_NUMBER(DEEPUM_IOC_SUBMIT)] = { DEEPUM_IOC_SUBMIT, sizeof(struct deepum_batch) },
	[DEEPUM_NUMBER(DEEPUM_IOC_NOTIFY)] = { DEEPUM_IOC_NOTIFY, sizeof(struct deepum_batch) },
	[DEEPUM_NUMBER(DEEPUM_IOC_EVENTFD)] = { DEEPUM_IOC_EVENTFD,
						sizeof(struct deepum_eventfd) },
	[DEEPUM_NUMBER(DEEPUM_IOC_RESIDENCY)] = { DEEPUM_IOC_RESIDENCY,
						  sizeof(struct deepum_residency) },
	[DEEPUM_NUMBER(DEEPUM_IOC_STATS)] = { DEEPUM_IOC_STATS, sizeof(struct deepum_stats) },
	[DEEPUM_NUMBER(DEEPUM_IOC_UVM)] = { DEEPUM_IOC_UVM, sizeof(struct deepum_uvm) },
};

static int deepum_dispatch(struct deepum_context *ctx, unsigned int number,
			   union deepum_argument *argument)
{
	if (number == DEEPUM_NUMBER(DEEPUM_IOC_FEATURES))
		return deepum_get_features(&argument->features);
	if (number == DEEPUM_NUMBER(DEEPUM_IOC_SETUP))
		return deepum_context_setup(ctx, &argument->setup);
	if (!deepum_ready(ctx))
		return -ENXIO;
	switch (number) {
	case DEEPUM_NUMBER(DEEPUM_IOC_SUBMIT):
		return deepum_submit(ctx, &argument->batch);
	case DEEPUM_NUMBER(DEEPUM_IOC_NOTIFY):
		return deepum_notify(ctx, &argument->batch);
	case DEEPUM_NUMBER(DEEPUM_IOC_EVENTFD):
		return deepum_set_eventfd(ctx, &argument->eventfd);
	case DEEPUM_NUMBER(DEEPUM_IOC_RESIDENCY):
		return deepum_get_residency(ctx, &argument->residency);
	case DEEPUM_NUMBER(DEEPUM_IOC_STATS):
		return deepum_get_stats(ctx, &argument->stats);
	default:
		return deepum_observe(ctx, &argument->uvm);
	}
}

long deepum_ioctl(struct file *file, unsigned int request, unsigned long user_argument)
{
	void __user *user = (void __user *)user_argument;
	unsigned int number = _IOC_NR(request);
	union deepum_argument argument;
	u32 size, bytes;
	int error;

	/* The size in the request's number is the caller's: its structure may be a newer one. */
	if (number >= DEEPUM_REQUESTS || DEEPUM_WITHOUT_SIZE(request) !=
					 DEEPUM_WITHOUT_SIZE(deepum_requests[number].request))
		return -ENOTTY;
	bytes = deepum_requests[number].bytes;
	if (get_user(size, (u32 __user *)user))
		return -EFAULT;
	if (size < bytes) /* none has grown so far */
		return -EINVAL;
	if (size > PAGE_SIZE)
		return -E2BIG;
	memset(&argument, 0, sizeof(argument));
	error = copy_struct_from_user(&argument, bytes, user, size);
	if (error)
		return error;
	argument.size = size;
	error = deepum_dispatch(file->private_data, number, &argument);
	/* A batch says how far it got even if it failed. */
	if (_IOC_DIR(request) & _IOC_READ && copy_to_user(user, &argument, bytes))
		return -EFAULT;
	return error;
}

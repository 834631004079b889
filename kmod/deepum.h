/* SPDX-License-Identifier: GPL-2.0 */
/*
 * deepum: UM blocks that move between device frames and a host store.
 *
 * A context has one lock. It guards the state of all blocks, the lists, and the queues; it is not
 * held while a block is copied or unmapped, nor while user memory is touched. Only the migration
 * thread moves blocks: INCOMING and OUTGOING blocks are its own.
 *
 * Locks, outer first: mmap_lock, deepum_context.lock, page table locks, deepum_context.ring.lock.
 */
#ifndef DEEPUM_H
#define DEEPUM_H

#include <linux/kthread.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/xarray.h>
#include <uapi/linux/deepum.h>

#include "compat.h"

#define DEEPUM_BLOCK_BYTES (1UL << DEEPUM_BLOCK_SHIFT)
#define DEEPUM_BLOCK_ORDER (DEEPUM_BLOCK_SHIFT - PAGE_SHIFT)
#define DEEPUM_SPACE_BLOCKS (DEEPUM_SPACE_BYTES >> DEEPUM_BLOCK_SHIFT)
#define DEEPUM_FEATURES (DEEPUM_FEATURE_TOUCH | DEEPUM_FEATURE_DROP_INACTIVE | \
			 (IS_ENABLED(CONFIG_KPROBES) ? DEEPUM_FEATURE_UVM : 0))

/* Flags of a block, beside the DEEPUM_STATE_ ones. */
#define DEEPUM_BLOCK_AHEAD 0x100   /* brought by a prefetch, not touched since */
#define DEEPUM_BLOCK_WAITING 0x200 /* in the queue of faults */
#define DEEPUM_BLOCK_LATE 0x400	   /* its prefetch was on its way when it faulted */
#define DEEPUM_BLOCK_MAPPED 0x800  /* mapped since it came */
#define DEEPUM_BLOCK_MANAGED 0x1000 /* its place on the host is kept */

/**
 * struct deepum_block - 2 MiB of UM space, known from its first touch on
 * @index: its number
 * @state: DEEPUM_STATE_
 * @flags: DEEPUM_STATE_ flags and DEEPUM_BLOCK_
 * @queued: prefetches of it that wait
 * @waiters: threads that wait for it; while there are any it is no victim
 * @order: in the list of migrated or of inactive blocks, while resident
 * @fault: in the queue of faults, while WAITING
 * @frame: device memory, unless absent
 * @store: host memory, from the first need of a frame to a discard
 * @fault_ns: when the oldest thread that waits began to
 */
struct deepum_block {
	u64 index;
	u32 state;
	u32 flags;
	u32 queued;
	u32 waiters;
	struct list_head order;
	struct list_head fault;
	struct page *frame;
	struct page *store;
	u64 fault_ns;
};

struct deepum_queued {
	struct deepum_command command;
	u64 order;
};

/**
 * struct deepum_queue - commands that wait, a circular buffer
 * @commands: DEEPUM_MAX_BATCH of them, each with its place in the order of all
 * @head: commands ever put in
 * @tail: commands carried out
 * @position: blocks of the first one that have been dealt with
 */
struct deepum_queue {
	struct deepum_queued *commands;
	u64 head;
	u64 tail;
	u64 position;
};

/**
 * struct deepum_producer - the module's side of a ring
 * @lock: one producer at a time
 * @shared: what is mapped; nothing read from it is trusted
 * @head: events ever put in, ours
 * @dropped: events lost, ours
 * @size: events that fit, 0 before SETUP
 * @readers: who polls
 * @eventfd: signalled when the ring stops being empty
 */
struct deepum_producer {
	spinlock_t lock;
	struct deepum_ring *shared;
	u64 head;
	u64 dropped;
	u32 size;
	wait_queue_head_t readers;
	struct eventfd_ctx *eventfd;
};

/**
 * struct deepum_context - an open file
 * @inode: its own address space: no other context's mappings are in it
 * @lock: see above
 * @ready: SETUP has succeeded
 * @features: those asked for
 * @frames: device memory in blocks
 * @free_frames: stack of @free_count frames
 * @free_count: frames not in use
 * @blocks: by number
 * @migrated: resident active blocks, least recently migrated first
 * @inactive: resident inactive ones
 * @faults: blocks that threads wait for, in order of arrival
 * @stuck: no frame for the first of them until a thread stops waiting for its block
 * @urgent: commands to be carried out first
 * @out: evictions and discards
 * @in: prefetches
 * @order: commands ever queued
 * @patience_ns: how long a fault without a frame waits for a command that frees one
 * @deadline_ns: until when the first fault does, 0: it does not
 * @unanswered: it did in vain, and nothing was submitted since
 * @passed: the policy has no victim for it
 * @work: the migration thread sleeps here
 * @moved: threads that wait for a block sleep here
 * @done: and those that wait for their commands here
 * @thread: the migration thread
 * @launches: execution IDs of launches that have not completed, by sequence number
 * @stats: counts
 * @ring: events out
 * @observer: in the list of contexts that observe NVIDIA's driver
 */
struct deepum_context {
	struct inode *inode;
	struct mutex lock;
	bool ready;
	u64 features;
	u32 frames;
	struct page **free_frames;
	u32 free_count;
	struct xarray blocks;
	struct list_head migrated;
	struct list_head inactive;
	struct list_head faults;
	bool stuck;
	struct deepum_queue urgent;
	struct deepum_queue out;
	struct deepum_queue in;
	u64 order;
	u64 patience_ns;
	u64 deadline_ns;
	bool unanswered;
	bool passed;
	wait_queue_head_t work;
	wait_queue_head_t moved;
	wait_queue_head_t done;
	struct task_struct *thread;
	u64 *launches;
	struct deepum_stats stats;
	struct deepum_producer ring;
	struct list_head observer;
};

/* context.c */
struct deepum_context *deepum_context_create(struct inode *inode);
int deepum_context_setup(struct deepum_context *ctx, const struct deepum_setup *setup);
void deepum_context_destroy(struct deepum_context *ctx);

/* memory.c */
struct page *deepum_memory_alloc(void);
void deepum_memory_free(struct page *page);
void deepum_memory_copy(struct page *to, struct page *from);
void deepum_memory_zero(struct page *page);

/* block.c */
int deepum_block_init(void);
void deepum_block_exit(void);
struct deepum_block *deepum_block_get(struct deepum_context *ctx, u64 index);
int deepum_block_reserve(struct deepum_context *ctx, struct deepum_block *block);
void deepum_block_link(struct deepum_context *ctx, struct deepum_block *block);
struct deepum_block *deepum_block_victim(struct deepum_context *ctx);
void deepum_block_activate(struct deepum_context *ctx, u64 first, u64 end);
void deepum_block_deactivate(struct deepum_context *ctx, u64 first, u64 end, bool unmanage);
void deepum_block_free_all(struct deepum_context *ctx);

/* fault.c */
int deepum_map_space(struct deepum_context *ctx, struct vm_area_struct *vma);

/* migrate.c */
int deepum_migrate(void *context);

/* command.c */
static inline bool deepum_queue_empty(const struct deepum_queue *queue)
{
	return READ_ONCE(queue->head) == READ_ONCE(queue->tail);
}

int deepum_submit(struct deepum_context *ctx, struct deepum_batch *batch);

/* notify.c */
int deepum_notify(struct deepum_context *ctx, struct deepum_batch *batch);
void deepum_running(const struct deepum_context *ctx, struct deepum_event *event);

/* ring.c */
int deepum_ring_create(struct deepum_producer *ring, u32 size);
void deepum_ring_destroy(struct deepum_producer *ring);
void deepum_ring_push(struct deepum_producer *ring, const struct deepum_event *event);
void deepum_ring_lose(struct deepum_producer *ring, u64 count);
void deepum_ring_sync(struct deepum_producer *ring, u64 *events, u64 *dropped);
int deepum_ring_eventfd(struct deepum_producer *ring, int fd);
__poll_t deepum_ring_poll(struct deepum_producer *ring, struct file *file,
			  struct poll_table_struct *table);

/* ioctl.c */
long deepum_ioctl(struct file *file, unsigned int request, unsigned long argument);

/* uvm.c */
int deepum_uvm_init(void);
void deepum_uvm_exit(void);
int deepum_uvm_attach(struct deepum_context *ctx, const struct deepum_uvm *layout);
void deepum_uvm_detach(struct deepum_context *ctx);

/* Whether all that SETUP makes may be used. */
static inline bool deepum_ready(struct deepum_context *ctx)
{
	/* Pairs with the release in deepum_context_setup. */
	return smp_load_acquire(&ctx->ready);
}

static inline void deepum_say(struct deepum_context *ctx, u32 type, u64 index, u8 flags, u8 tier)
{
	struct deepum_event event = {
		.type = type,
		.tier = tier,
		.flags = flags,
		.address = index << DEEPUM_BLOCK_SHIFT,
		.bytes = DEEPUM_BLOCK_BYTES,
	};

	deepum_running(ctx, &event);
	deepum_ring_push(&ctx->ring, &event);
}

#endif

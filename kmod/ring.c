// SPDX-License-Identifier: GPL-2.0
/*
 * Events out. Tasks and interrupts may push. The reader may write
 * what it likes into the mapping: it can confuse itself, no one else.
 */
#include <linux/eventfd.h>
#include <linux/poll.h>
#include <linux/timekeeping.h>
#include <linux/vmalloc.h>

#include "deepum.h"

int deepum_ring_create(struct deepum_producer *ring, u32 size)
{
	ring->shared = vmalloc_user(PAGE_ALIGN(DEEPUM_RING_EVENTS +
					       size * sizeof(struct deepum_event)));
	if (!ring->shared)
		return -ENOMEM;
	ring->shared->size = size;
	ring->shared->event_bytes = sizeof(struct deepum_event);
	ring->size = size;
	return 0;
}

void deepum_ring_destroy(struct deepum_producer *ring)
{
	if (ring->eventfd)
		eventfd_ctx_put(ring->eventfd);
	ring->eventfd = NULL;
	vfree(ring->shared);
	ring->shared = NULL;
}

void deepum_ring_push(struct deepum_producer *ring, const struct deepum_event *event)
{
	struct deepum_ring *shared = ring->shared;
	struct deepum_event *slot;
	unsigned long flags;
	u64 head, tail;

	spin_lock_irqsave(&ring->lock, flags);
	head = ring->head;
	/* The slot is the reader's until it has moved its tail past it. */
	tail = smp_load_acquire(&shared->tail);
	if (head - tail >= ring->size) {
		ring->dropped++;
		WRITE_ONCE(shared->dropped, ring->dropped);
		spin_unlock_irqrestore(&ring->lock, flags);
		return;
	}
	slot = (void *)shared + DEEPUM_RING_EVENTS + (head & (ring->size - 1)) * sizeof(*slot);
	*slot = *event;
	if (!slot->time_ns)
		slot->time_ns = ktime_get_mono_fast_ns();
	ring->head = head + 1;
	/* Pairs with the reader's acquiring load: the event is there. */
	smp_store_release(&shared->head, head + 1);
	/* A reader stores its tail and looks at head again: one of the two sees the other. */
	smp_mb(); /* between head and the looks at tail and at who waits */
	if (ring->eventfd && READ_ONCE(shared->tail) == head)
		deepum_eventfd_signal(ring->eventfd);
	spin_unlock_irqrestore(&ring->lock, flags);
	/* The barrier above pairs with that in deepum_ring_poll. */
	if (waitqueue_active(&ring->readers))
		wake_up_interruptible(&ring->readers);
}

/* Events that were lost before they came here. */
void deepum_ring_lose(struct deepum_producer *ring, u64 count)
{
	unsigned long flags;

	spin_lock_irqsave(&ring->lock, flags);
	ring->dropped += count;
	WRITE_ONCE(ring->shared->dropped, ring->dropped);
	spin_unlock_irqrestore(&ring->lock, flags);
}

void deepum_ring_sync(struct deepum_producer *ring, u64 *events, u64 *dropped)
{
	unsigned long flags;

	spin_lock_irqsave(&ring->lock, flags);
	*events = ring->head;
	*dropped = ring->dropped;
	spin_unlock_irqrestore(&ring->lock, flags);
}

int deepum_ring_eventfd(struct deepum_producer *ring, int fd)
{
	struct eventfd_ctx *eventfd = NULL, *old;
	unsigned long flags;

	if (fd >= 0) {
		eventfd = eventfd_ctx_fdget(fd);
		if (IS_ERR(eventfd))
			return PTR_ERR(eventfd);
	} else if (fd != -1) {
		return -EBADF;
	}
	spin_lock_irqsave(&ring->lock, flags);
	old = ring->eventfd;
	ring->eventfd = eventfd;
	spin_unlock_irqrestore(&ring->lock, flags);
	if (old)
		eventfd_ctx_put(old);
	return 0;
}

__poll_t deepum_ring_poll(struct deepum_producer *ring, struct file *file,
			  struct poll_table_struct *table)
{
	poll_wait(file, &ring->readers, table);
	/* Pairs with the barrier in deepum_ring_push: it sees us, or we see its event. */
	smp_mb(); /* between our place in the queue and head */
	return READ_ONCE(ring->head) != READ_ONCE(ring->shared->tail) ? EPOLLIN | EPOLLRDNORM : 0;
}

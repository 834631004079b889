/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Events and commands of deepum.
 *
 * The same records serve the trace of a live run, the simulator, the GPU
 * backends and the rings of the kernel module: what happens goes in as events,
 * what is decided comes out as commands. Both have a fixed size and no
 * padding; unused fields are zero.
 */
#ifndef _UAPI_LINUX_DEEPUM_H
#define _UAPI_LINUX_DEEPUM_H

#ifdef __linux__
#include <linux/ioctl.h>
#include <linux/types.h>
#else
#include <stdint.h>
typedef uint8_t __u8;
typedef uint16_t __u16;
typedef int32_t __s32;
typedef uint32_t __u32;
typedef uint64_t __u64;
#endif

/* A UM block is 2 MiB; its number is address >> DEEPUM_BLOCK_SHIFT. */
#define DEEPUM_BLOCK_SHIFT 21
/* Addresses lie below 2^53, so that a block number fits 32 bits. */
#define DEEPUM_ADDRESS_BITS 53

enum deepum_event_type {
	DEEPUM_EVENT_MANAGE = 1,   /* address, bytes: a range becomes managed memory; id: chunk */
	DEEPUM_EVENT_UNMANAGE = 2, /* address, bytes: it is given back */
	DEEPUM_EVENT_ALLOC = 3,    /* address, bytes: a PT block becomes active; id: tensor */
	DEEPUM_EVENT_FREE = 4,     /* address, bytes: a PT block becomes inactive */
	DEEPUM_EVENT_LAUNCH = 5,   /* exec_id, seq: a kernel was submitted */
	DEEPUM_EVENT_RANGE = 6,    /* address, bytes: memory the next launch will touch */
	DEEPUM_EVENT_COMPLETE = 7, /* seq: this launch and all before it have finished */
	DEEPUM_EVENT_FAULT = 8,    /* address: touched and not resident; flags: access */
	DEEPUM_EVENT_ARRIVED = 9,  /* address: the block is resident now */
	DEEPUM_EVENT_DEPARTED = 10 /* address: the block's frame is free now */
};

/* Flags of DEEPUM_EVENT_FAULT. The module sets the last two. */
#define DEEPUM_ACCESS_WRITE 1
#define DEEPUM_ACCESS_LATE 2  /* a prefetch of the block was on its way */
#define DEEPUM_ACCESS_TOUCH 4 /* no miss: the first touch of a prefetched block */

/* Flags of DEEPUM_EVENT_ARRIVED and DEEPUM_EVENT_DEPARTED, set by the module. */
#define DEEPUM_MOVE_DEMAND 1  /* on the path of a fault */
#define DEEPUM_MOVE_REFUSED 2 /* a command was not carried out: this is how things stand */
#define DEEPUM_MOVE_DROPPED 4 /* the contents are gone: they read as zeros */

/*
 * Flags of DEEPUM_EVENT_MANAGE: the range has its frames already, as far as there are any; it has
 * contents on the host. Its id is the most UM blocks that move as one, a power of two; 0 is one.
 */
#define DEEPUM_MANAGE_RESIDENT 1
#define DEEPUM_MANAGE_CONTENT 2

/* Flags of DEEPUM_EVENT_RANGE: the launch only reads it. */
#define DEEPUM_RANGE_READ 1

/* In an event's device: it comes from NVIDIA's driver, the low bits are its processor. */
#define DEEPUM_DEVICE_UVM 0x8000

struct deepum_event {
	__u32 type;
	__u16 device;
	__u8 tier; /* 0 device, 1 host, 2 disk */
	__u8 flags;
	__u64 seq;
	__u64 exec_id;
	__u64 address;
	__u64 bytes;
	__u64 id;
	__u64 time_ns;
	__u64 reserved;
};

enum deepum_command_type {
	DEEPUM_COMMAND_PREFETCH = 1, /* bring the blocks to the device */
	DEEPUM_COMMAND_EVICT = 2,    /* copy the blocks to the host, free their frames */
	DEEPUM_COMMAND_DISCARD = 3   /* free the blocks' frames, drop their contents */
};

/* The command stands on the path of a fault: carry it out before all others. */
#define DEEPUM_COMMAND_DEMAND 1
/* The host has the same contents: free the frames without copying. */
#define DEEPUM_COMMAND_CLEAN 2

struct deepum_command {
	__u32 type;
	__u16 device;
	__u8 tier;
	__u8 flags;
	__u64 block; /* first block number */
	__u32 count; /* neighbouring blocks */
	__u32 reserved;
	__u64 seq; /* launch it is meant for, 0 where there is none */
};

/*
 * The interface of /dev/deepum.
 *
 * Every open file is a context of its own: UM space, device frames, a host store behind them, a
 * ring of events. The UM space is mapped with mmap(MAP_SHARED) at offsets below
 * DEEPUM_SPACE_BYTES; the offset is the address in events and commands, so a program that maps at
 * offset == address sees its own addresses. The ring is mapped at DEEPUM_MMAP_RING.
 *
 * Structures start with their size, may grow at the end, and are refused with E2BIG if a newer
 * program sets fields that this module does not know. Unknown flags and non-zero reserved fields
 * are refused with EINVAL, unknown requests with ENOTTY. Before SETUP all but FEATURES answer
 * ENXIO.
 */
#define DEEPUM_SPACE_BYTES (1ULL << DEEPUM_ADDRESS_BITS)
#define DEEPUM_MMAP_RING (1ULL << 60)
#define DEEPUM_MIN_FRAMES 4
#define DEEPUM_MAX_FRAMES (1U << 20)
#define DEEPUM_MIN_RING 64
#define DEEPUM_MAX_RING (1U << 20)
#define DEEPUM_MAX_BATCH 4096
#define DEEPUM_MAX_LAUNCHES 4096

/* Report the first touch of a prefetched block: a fault with DEEPUM_ACCESS_TOUCH. */
#define DEEPUM_FEATURE_TOUCH (1ULL << 0)
/* An inactive block that is evicted is dropped, not copied. */
#define DEEPUM_FEATURE_DROP_INACTIVE (1ULL << 1)
/* The module can observe NVIDIA's driver (DEEPUM_IOC_UVM). */
#define DEEPUM_FEATURE_UVM (1ULL << 2)

struct deepum_features {
	__u32 size;
	__u32 flags;	   /* 0 */
	__u64 features;	   /* out: all that the module has */
	__u64 requests;	   /* out: bit n stands for request number n */
	__u64 space_bytes; /* out: addresses lie below */
};

struct deepum_setup {
	__u32 size;
	__u32 flags;	   /* 0 */
	__u64 features;	   /* in: wanted ones */
	__u32 frames;	   /* blocks of device memory */
	__u32 ring_events; /* a power of two; 0: 4096 */
	/*
	 * How long a fault that finds no free frame waits for the policy to name a victim, by an
	 * EVICT command. If none comes, the least recently migrated block goes, and the policy is
	 * not waited for until it submits again. 0: it is never waited for.
	 */
	__u32 patience_us;
	__u32 reserved;
};

/* Return only when all that was submitted so far has been carried out. */
#define DEEPUM_SUBMIT_WAIT 1
/* The policy names no victim for the fault that waits for one: do not wait any longer. */
#define DEEPUM_SUBMIT_PASS 2

/*
 * Commands (SUBMIT) or events (NOTIFY). What was taken is taken, whatever follows.
 *
 * Faults are served before all commands, then come those with DEEPUM_COMMAND_DEMAND, then the
 * others in order; a fault that needs a frame lets evictions and discards overtake prefetches. Each
 * is answered with an ARRIVED or DEPARTED event for each of its blocks. EVICT and DISCARD skip
 * blocks that were never used. A DISCARD of memory that is not inactive and a prefetch that finds
 * no frame are refused.
 *
 * Events to notify: LAUNCH and COMPLETE; MANAGE sets memory aside on the host, so that touching
 * the range later cannot fail; UNMANAGE undoes that and makes its blocks inactive; ALLOC makes the
 * blocks that it overlaps active, FREE those inactive that lie wholly inside; RANGE is passed on.
 * All of them appear in the ring.
 */
struct deepum_batch {
	__u32 size;
	__u32 flags;
	__u32 count;
	__u32 done;   /* out: how many were taken */
	__u64 records; /* struct deepum_command * or struct deepum_event * */
};

struct deepum_eventfd {
	__u32 size;
	__u32 flags; /* 0 */
	__s32 fd;    /* signalled when the ring stops being empty; -1: none */
	__u32 reserved;
};

/* Where blocks are: the low bits of a byte of DEEPUM_IOC_RESIDENCY. */
#define DEEPUM_STATE_ABSENT 0
#define DEEPUM_STATE_INCOMING 1
#define DEEPUM_STATE_RESIDENT 2
#define DEEPUM_STATE_OUTGOING 3
#define DEEPUM_STATE_MASK 3
#define DEEPUM_STATE_INACTIVE 0x10
#define DEEPUM_STATE_DIRTY 0x20	 /* written since it came to the device */
#define DEEPUM_STATE_ON_HOST 0x40 /* the host store holds contents */

struct deepum_residency {
	__u32 size;
	__u32 flags; /* 0 */
	__u64 block; /* first block number */
	__u32 count;
	__u32 reserved;
	__u64 states; /* __u8 *, one a block */
};

/* Why a touch had to be served. */
#define DEEPUM_CAUSE_MAP 0   /* resident, not mapped: the first touch after a prefetch */
#define DEEPUM_CAUSE_ZERO 1  /* never written: an empty frame */
#define DEEPUM_CAUSE_COPY 2  /* copied in, a frame was free */
#define DEEPUM_CAUSE_EVICT 3 /* another block had to leave first */
#define DEEPUM_CAUSE_LATE 4  /* its prefetch was on its way */
#define DEEPUM_CAUSES 5

struct deepum_stats {
	__u32 size;
	__u32 flags; /* 0 */
	__u64 frames;
	__u64 frames_free;
	__u64 host_blocks;	/* blocks of the host store */
	__u64 launched;
	__u64 completed;
	__u64 faults;		/* demand faults: blocks, not threads */
	__u64 served[DEEPUM_CAUSES];
	__u64 served_ns[DEEPUM_CAUSES];
	__u64 mapped_huge;	/* mappings of a whole block by one entry */
	__u64 mapped_small;	/* and by single pages */
	__u64 write_upgrades;
	__u64 prefetched;	/* blocks brought by command */
	__u64 prefetch_refused; /* no free frame */
	__u64 evicted;		/* by command */
	__u64 evicted_demand;	/* inside the fault path */
	__u64 discarded;	/* by command */
	__u64 discard_refused;	/* the block was active */
	__u64 dropped_inactive; /* evicted without a copy because inactive */
	__u64 left_clean;	/* evicted without a copy because not written */
	__u64 copied_in;
	__u64 copied_out;
	__u64 zeroed;
	__u64 copy_ns;
	__u64 events;
	__u64 events_dropped;	/* the ring was full */
	__u64 queued;		/* commands that wait or are being carried out */
	__u64 waiting;		/* blocks that threads wait for */
};

/*
 * Observe NVIDIA's driver: its faults, migrations and evictions enter this context's ring. The
 * layout of its structures comes from /sys/kernel/btf/nvidia_uvm. Needs CAP_SYS_ADMIN, since it
 * shows other processes' addresses.
 */
struct deepum_uvm {
	__u32 size;
	__u32 flags; /* DEEPUM_UVM_DETACH */
	__u32 event_fault;
	__u32 event_migration;
	__u32 cause_eviction;
	__u16 fault_processor;	 /* byte offsets in the event's data */
	__u16 fault_entry;
	__u16 fault_cpu_address;
	__u16 fault_cpu_write;
	__u16 entry_address;	 /* in what fault_entry points to */
	__u16 entry_access_bit;	 /* bit offset of the access type */
	__u16 entry_access_bits; /* its width */
	__u16 access_write;	 /* the least access type that writes */
	__u16 migration_to;
	__u16 migration_from;
	__u16 migration_address;
	__u16 migration_bytes;
	__u16 migration_cause;
	__u16 data_bytes;	 /* size of the event's data */
};

#define DEEPUM_UVM_DETACH 1

/*
 * The ring: this header, and events from byte 4096 on. The module writes head, the reader tail;
 * both count events without wrapping, event n lies at n % size. A reader that has taken all
 * stores tail, and looks at head once more behind a full barrier before it sleeps.
 */
struct deepum_ring {
	__u64 head;
	__u64 dropped; /* events lost because the ring was full */
	__u32 size;    /* events */
	__u32 event_bytes;
	__u64 reserved[5];
	__u64 tail;
};

#define DEEPUM_RING_EVENTS 4096

#ifdef __linux__
#define DEEPUM_IOC_MAGIC 0xDE
#define DEEPUM_IOC_FEATURES _IOWR(DEEPUM_IOC_MAGIC, 0, struct deepum_features)
#define DEEPUM_IOC_SETUP _IOW(DEEPUM_IOC_MAGIC, 1, struct deepum_setup)
#define DEEPUM_IOC_SUBMIT _IOWR(DEEPUM_IOC_MAGIC, 2, struct deepum_batch)
#define DEEPUM_IOC_NOTIFY _IOWR(DEEPUM_IOC_MAGIC, 3, struct deepum_batch)
#define DEEPUM_IOC_EVENTFD _IOW(DEEPUM_IOC_MAGIC, 4, struct deepum_eventfd)
#define DEEPUM_IOC_RESIDENCY _IOW(DEEPUM_IOC_MAGIC, 5, struct deepum_residency)
#define DEEPUM_IOC_STATS _IOWR(DEEPUM_IOC_MAGIC, 6, struct deepum_stats)
#define DEEPUM_IOC_UVM _IOW(DEEPUM_IOC_MAGIC, 7, struct deepum_uvm)
#endif

#endif

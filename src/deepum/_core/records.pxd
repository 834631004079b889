# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Events and commands, as the kernel module's header defines them."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "uapi/linux/deepum.h" nogil:
    enum:
        DEEPUM_BLOCK_SHIFT
        DEEPUM_ADDRESS_BITS
        DEEPUM_ACCESS_WRITE
        DEEPUM_MANAGE_RESIDENT
        DEEPUM_MANAGE_CONTENT
        DEEPUM_RANGE_READ
        DEEPUM_COMMAND_DEMAND
        DEEPUM_COMMAND_CLEAN

    enum:
        DEEPUM_EVENT_MANAGE
        DEEPUM_EVENT_UNMANAGE
        DEEPUM_EVENT_ALLOC
        DEEPUM_EVENT_FREE
        DEEPUM_EVENT_LAUNCH
        DEEPUM_EVENT_RANGE
        DEEPUM_EVENT_COMPLETE
        DEEPUM_EVENT_FAULT
        DEEPUM_EVENT_ARRIVED
        DEEPUM_EVENT_DEPARTED

    enum:
        DEEPUM_COMMAND_PREFETCH
        DEEPUM_COMMAND_EVICT
        DEEPUM_COMMAND_DISCARD

    struct deepum_event:
        uint32_t type
        uint16_t device
        uint8_t tier
        uint8_t flags
        uint64_t seq
        uint64_t exec_id
        uint64_t address
        uint64_t bytes
        uint64_t id
        uint64_t time_ns
        uint64_t reserved

    struct deepum_command:
        uint32_t type
        uint16_t device
        uint8_t tier
        uint8_t flags
        uint64_t block
        uint32_t count
        uint32_t reserved
        uint64_t seq

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Timed loops over the hot paths, for ``deepum bench core``.

Each takes the work and returns nanoseconds per operation, measured inside the loop, so that
calling from Python costs nothing.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from deepum._core.block_table cimport (
    MAX_LEVELS, Geometry, Table, geometry_set, table_find, table_free, table_init, table_record,
)
from deepum._core.exec_table cimport NONE, ExecTable


cdef double nanoseconds() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec * 1e9 + t.tv_nsec


def exec_table_ns(uint32_t kernels=8000, uint32_t rounds=20):
    """Return (update, predict) in nanoseconds: `kernels` distinct IDs, repeated in order.

    The first two rounds fill the table and are not counted.
    """
    cdef ExecTable table = ExecTable()
    cdef uint32_t context[4]
    cdef uint32_t r, k, _k, kernel, wrong = 0, guess = NONE
    cdef double began, update = 0, predict = 0
    memset(context, 0xFF, sizeof(context))
    for r in range(rounds + 2):
        began = nanoseconds()
        for k in range(kernels):
            kernel = table.intern(<uint64_t>(k + 1) * <uint64_t>0x9E3779B97F4A7C15)
            if context[0] != NONE:
                table.learn(context, kernel)
            context[3] = context[2]
            context[2] = context[1]
            context[1] = context[0]
            context[0] = kernel
        if r >= 2:
            update += nanoseconds() - began
        began = nanoseconds()
        for _k in range(kernels):
            guess = table.guess(context)
            if guess == NONE:
                wrong += 1
                continue
            context[3] = context[2]
            context[2] = context[1]
            context[1] = context[0]
            context[0] = guess
        if r >= 2:
            predict += nanoseconds() - began
    if wrong > 2 * kernels:
        raise RuntimeError("the table did not learn a sequence that repeats")
    return update / rounds / kernels, predict / rounds / kernels


def block_table_ns(uint32_t tables=500, uint32_t blocks=60, uint32_t rounds=20):
    """Return (record, lookup) in nanoseconds: `tables` tables of `blocks` blocks, in turn.

    The first round fills the tables and is not counted.
    """
    cdef Geometry geometry
    cdef Table store[4096]
    cdef uint32_t last[MAX_LEVELS]
    cdef uint32_t r, t, b, found = 0
    cdef double began, record = 0, lookup = 0
    if not 1 <= tables <= 4096:
        raise ValueError("tables must be between 1 and 4096")
    geometry_set(&geometry, 2048, 2, 4, 1)
    for t in range(tables):
        table_init(&store[t])
    try:
        for r in range(rounds + 1):
            began = nanoseconds()
            for t in range(tables):
                memset(last, 0xFF, sizeof(last))
                for b in range(blocks):
                    table_record(&store[t], &geometry, last, t * 40 + b)
            if r:
                record += nanoseconds() - began
            began = nanoseconds()
            for t in range(tables):
                for b in range(blocks):
                    found += table_find(&store[t], &geometry, t * 40 + b) != NULL
            if r:
                lookup += nanoseconds() - began
    finally:
        for t in range(tables):
            table_free(&store[t])
    if found != (rounds + 1) * tables * blocks:
        raise RuntimeError("the table lost a block")
    return record / rounds / (tables * blocks), lookup / rounds / (tables * blocks)

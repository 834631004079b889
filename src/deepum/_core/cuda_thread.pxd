# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""What a thread of a session does before it calls the driver."""

from cuda.bindings cimport cydriver


cdef inline int join_context(cydriver.CUcontext context) noexcept nogil:
    # 0, or the driver's error. Relaxed: else what the thread does would spoil a graph that the
    # program is capturing meanwhile.
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef int status = cydriver.cuCtxSetCurrent(context)
    return status or cydriver.cuThreadExchangeStreamCaptureMode(&mode)

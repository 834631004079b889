# SPDX-License-Identifier: Apache-2.0
"""Traces: what a program launches, allocates and frees, iteration by iteration.

A :class:`Trace` is a set of immutable numpy columns. Load one with :meth:`Trace.load`,
make one with :meth:`Trace.builder`. ``docs/trace-format.md`` says what each column means.
"""

from .build import Operand, TraceBuilder
from .model import Trace

__all__ = ["Operand", "Trace", "TraceBuilder"]

# SPDX-License-Identifier: Apache-2.0
"""The compiled heart: tables, residency, engine, native policies and the simulator's clock.

Everything here is deterministic and runs without the GIL; nothing knows CUDA, torch or threads.
"""

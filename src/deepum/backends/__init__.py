# SPDX-License-Identifier: Apache-2.0
"""Backends: each carries out the engine's commands and reports what happens.

This version has one, the simulator (`deepum.backends.sim`).
"""

# SPDX-License-Identifier: Apache-2.0
"""The exceptions of deepum: catch :class:`DeepUMError` and none escapes."""


class DeepUMError(Exception):
    """What every error that deepum raises on purpose derives from; its text is one clear line."""


class TraceError(DeepUMError):
    """A trace cannot be read, written or built, or contradicts itself."""


class MachineError(DeepUMError):
    """A hardware profile is unknown or wrong."""


class BudgetError(DeepUMError):
    """A memory budget cannot work: smaller than what one kernel needs, for example."""


class PolicyError(DeepUMError):
    """A policy is unknown, does not load, or was given options that it does not have."""


class RecordError(DeepUMError):
    """A program cannot be recorded."""


class BackendError(DeepUMError):
    """A backend cannot start or do what was asked of it."""


class OutOfMemoryError(DeepUMError):
    """A policy that models plain device memory finds none for an allocation: the run ends."""

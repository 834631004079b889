# SPDX-License-Identifier: Apache-2.0
"""Use more GPU memory than the card has, at close to the speed it would have if it were there.

deepum learns which kernel follows which and which 2 MiB blocks each kernel touches, and moves
blocks before they are needed. Importing it touches neither CUDA nor PyTorch: every name below is
loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepum.backends.sim import simulate
    from deepum.errors import DeepUMError
    from deepum.machine import Machine
    from deepum.policy import Policy, register_policy
    from deepum.session import Session
    from deepum.trace import Trace

    __version__: str

__all__ = [
    "DeepUMError",
    "Machine",
    "Policy",
    "Session",
    "Trace",
    "__version__",
    "register_policy",
    "simulate",
]

_HOME = {
    "DeepUMError": "deepum.errors",
    "Machine": "deepum.machine",
    "Policy": "deepum.policy",
    "Session": "deepum.session",
    "Trace": "deepum.trace",
    "register_policy": "deepum.policy",
    "simulate": "deepum.backends.sim",
}


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("deepum")
    except PackageNotFoundError:  # a source tree on the path, never installed
        return "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

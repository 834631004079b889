# SPDX-License-Identifier: Apache-2.0
"""Taking values out of other people's JSON, with one clear line where they are wrong."""

from __future__ import annotations

from typing import Any

from ..errors import TraceError

_WORDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
_MISSING: Any = object()


def typed(value: Any, kind: type, where: str) -> Any:
    """Return the value if it is of a kind; a whole number is a number, true and false are not."""
    good = isinstance(value, (int, float) if kind is float else kind)
    if not good or (isinstance(value, bool) and kind is not bool):
        raise TraceError(f"{where} must be {_WORDS[kind]}, not {_short(value)}")
    return value


def field(owner: dict[str, Any], key: str, kind: type, where: str, default: Any = _MISSING) -> Any:
    """Return a field of an object, or the default where it is absent."""
    if key not in owner:
        if default is _MISSING:
            raise TraceError(f"{where} lacks {key!r}")
        return default
    return typed(owner[key], kind, f"{where}: {key!r}")


def only(owner: dict[str, Any], known: set[str], where: str) -> None:
    """Refuse fields that mean nothing: they are misspelt ones."""
    if unknown := sorted(owner.keys() - known):
        raise TraceError(f"{where} has an unknown field {unknown[0]!r}")


def number(value: Any, where: str) -> int:
    """Return a whole number, which may also be written as a string: ``"4096"``, ``"0x1000"``."""
    if isinstance(value, str):
        try:
            return int(value, 0)
        except ValueError:
            pass
    return int(typed(value, int, where))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."

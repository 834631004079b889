# SPDX-License-Identifier: Apache-2.0
"""Colours: one meaning each, told apart by colour-blind readers, in a light and a dark shade."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# name: (light, dark). Light shades are all different: a drawing made with them can be turned
# into one that follows the reader's theme by replacing each with its name.
COLOURS: dict[str, tuple[str, str]] = {
    "ink": ("#1c2530", "#e8edf2"),
    "muted": ("#5a6572", "#9fabb8"),
    "grid": ("#e1e6ec", "#2c3743"),
    "paper": ("#fefefe", "#161d25"),
    "grey": ("#8792a0", "#8f9bab"),
    "orange": ("#e69f00", "#f0b53c"),
    "blue": ("#0072b2", "#4aa8e0"),
    "green": ("#009e73", "#2cc398"),
    "vermilion": ("#d55e00", "#f0813a"),
    "sky": ("#56b4e9", "#8fd0f5"),
    "pink": ("#cc79a7", "#e29bc3"),
    "purple": ("#7b5ea7", "#a98ed4"),
    "steel": ("#3f6f94", "#6797bd"),
    "sand": ("#f2b872", "#f7cd98"),
    "mist": ("#b9c3cd", "#56626f"),
}

_POLICIES = {"noop": "grey", "single-level": "orange", "chained": "blue", "oracle": "green"}
_OTHERS = ("pink", "sky", "purple", "vermilion", "sand", "steel")

CAUSES = {
    "compute": "steel",
    "fault service": "vermilion",
    "eviction": "sand",
    "late prefetch": "purple",
    "host": "mist",
}
"""Where the time of a step goes -> colour name."""

KINDS = {
    "parameter": "blue",
    "gradient": "sky",
    "optimizer": "green",
    "activation": "orange",
    "workspace": "pink",
    "input": "purple",
    "other": "mist",
}
"""Kind of tensor -> colour name, in the order in which they are stacked."""

DIRECTIONS = {"in": "blue", "out": "orange", "dropped": "mist"}


def light(name: str) -> str:
    """Return the shade of a colour on white."""
    return COLOURS[name][0]


def of_policies(names: Iterable[str]) -> dict[str, str]:
    """Give each policy a colour name: the built-in ones always theirs, others what is left."""
    chosen: dict[str, str] = {}
    left = 0
    for name in names:
        if name in _POLICIES:
            chosen[name] = _POLICIES[name]
        elif name not in chosen:
            chosen[name] = _OTHERS[left % len(_OTHERS)]
            left += 1
    return chosen


def css() -> str:
    """Return the colours as CSS custom properties for both themes."""
    sides = ["".join(f"--{name}:{pair[i]};" for name, pair in COLOURS.items()) for i in (0, 1)]
    return f":root{{{sides[0]}}}\n@media (prefers-color-scheme:dark){{:root{{{sides[1]}}}}}\n"


def themed(svg: str) -> str:
    """Replace the light shades in an SVG by CSS variables."""
    for name, (shade, _) in COLOURS.items():
        svg = svg.replace(shade, f"var(--{name})")
    return svg

# SPDX-License-Identifier: Apache-2.0
"""Which points there are to measure, and about how long they take."""

from __future__ import annotations

from dataclasses import dataclass

MODES = ("native", "noop", "single-level", "chained", "arguments")
ALTERNATIVES = (
    "checkpointing", "save-on-cpu", "fsdp2-offload", "deepspeed-offload", "torchao-offload",
    "paged-adamw",
)  # fmt: skip
"""What people use in the place of more memory: alternatives.py makes each of it."""
VMM_MODES = ("native", "noop", "managed-chained", "vmm", *ALTERNATIVES)
"""What bench/gpu/vmm.py sets side by side."""
ABLATION = ("chained:prefetch", "chained:prefetch+pre-evict")
"""`chained` with the mechanisms named and no other; `chained` itself has invalidation too."""

BLOCK = 2 << 20
SPARE = 1.05
"""At 1.0x the budget is what the allocator reserved, times this: the engine keeps a 32nd free."""

START_S = 30.0
"""Importing PyTorch, building a model, opening a session: an assumption."""

# Seconds a step for each GB that does not fit: vmm as predicted (docs/vmm-defaults.md), the others
# from the first run on an H200 (bench/results/h200-managed.json: 26.5 GB of GPT-2 XL did not fit);
# single-level is taken to be as slow as noop, which is an assumption.
_S_PER_GB = {
    "noop": 0.44, "single-level": 0.44, "chained": 0.17, "arguments": 0.18, "managed-chained": 0.17,
    "vmm": 0.04,
}  # fmt: skip
_ALTERNATIVE_S_PER_GB = 0.1  # an assumption

# Peak bytes and seconds a step with all memory: GPT-2 XL measured, the others assumptions that
# only `--plan` uses.
_NATIVE = {
    "gpt2-small": (8e9, 0.05), "gpt2-medium": (20e9, 0.09), "gpt2-xl": (53e9, 0.26),
    "gpt2-xl-fused": (53e9, 0.25),
    "bert-small": (3e9, 0.03), "bert-large": (25e9, 0.6), "resnet50": (6e9, 0.1),
    "resnet152": (35e9, 0.7), "dlrm": (28e9, 0.1), "llama-1b": (40e9, 0.3),
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One thing to measure."""

    model: str
    batch: int | None
    mode: str
    ratio: float | None
    """Native peak over the memory limit; None for native itself."""


def points(
    models: list[str],
    ratios: list[float],
    modes: list[str],
    *,
    batch: int | None = None,
    ablation: bool = False,
    known: tuple[str, ...] = MODES,
) -> list[Point]:
    """Return the points in the order in which they run: a model's native one comes first."""
    limited = [mode for mode in modes if mode != "native"] + list(ABLATION if ablation else ())
    unknown = [mode for mode in limited if mode.partition(":")[0] not in known]
    if unknown:
        names = known + (ABLATION if known == MODES else ())
        raise ValueError(f"no mode {unknown[0]!r}; there are {', '.join(names)}")
    found = []
    for model in models:
        found.append(Point(model, batch, "native", None))
        found += [Point(model, batch, mode, ratio) for ratio in ratios for mode in limited]
    return found


def memory_of(mode: str) -> str:
    """Return where a mode's memory comes from: native, managed, vmm, or an alternative's name."""
    if mode in ("native", *ALTERNATIVES):
        return mode
    return "vmm" if mode.partition("-")[0] == "vmm" else "managed"


def policy_of(mode: str) -> str:
    """Return the policy of a mode with a session, with the mechanisms it is to keep."""
    memory, _, policy = mode.partition("-")
    return (policy or "chained") if memory in ("vmm", "managed") else mode


def limit(peak_bytes: int, reserved_bytes: int, ratio: float) -> int:
    """Return the memory limit in bytes, a multiple of 2 MiB, at an oversubscription ratio.

    Above 1 it is the peak of what native PyTorch allocated, over the ratio. At 1 everything is to
    be resident, and segments hold more than the tensors in them.
    """
    if ratio < 1:
        raise ValueError(f"a ratio of {ratio} is below 1: everything fits")
    size = peak_bytes / ratio if ratio > 1 else reserved_bytes * SPARE
    return int(size) // BLOCK * BLOCK


def estimate(point: Point, steps: int, timeout: float) -> float:
    """Return about how many seconds a point takes, never more than its timeout."""
    peak, native = _NATIVE.get(point.model, (50e9, 0.5))
    step = native
    if point.ratio is not None:
        over = peak * (1 - 1 / point.ratio) / 1e9
        step += over * _S_PER_GB.get(point.mode.partition(":")[0], _ALTERNATIVE_S_PER_GB)
    return min(timeout, START_S + steps * step)


def table(found: list[Point], steps: int, timeout: float) -> str:
    """Return a text: each point and about how long it takes, and all of them."""
    lines = []
    total = 0.0
    for point in found:
        seconds = estimate(point, steps, timeout)
        total += seconds
        ratio = "" if point.ratio is None else f"{point.ratio:g}x"
        lines.append(f"{point.model:12} {point.mode:28} {ratio:>5} {seconds:6.0f} s")
    lines.append(
        f"{len(found)} points, about {total / 60:.0f} min (estimated), "
        f"at most {len(found) * timeout / 60:.0f} min"
    )
    return "\n".join(lines)

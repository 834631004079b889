# SPDX-License-Identifier: Apache-2.0
"""How much memory the machine can still give: looked up before any is taken."""

from __future__ import annotations

from pathlib import Path

from deepum.errors import BackendError

MARGIN_BYTES = 128 << 20
"""Left for everything else."""

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file"),
)


def available_bytes() -> int | None:
    """Return what can be taken without swapping, within the limits of control groups.

    None where the system does not say.
    """
    found = [free for free in (_machine(), *_groups()) if free is not None]
    return min(found, default=None)


def require(size: int, what: str) -> None:
    """Raise `BackendError` if so many bytes cannot be had."""
    free = available_bytes()
    if free is not None and size > free - MARGIN_BYTES:
        mib = 1 << 20
        raise BackendError(
            f"not enough host memory for {what}: {size / mib:,.0f} MiB needed, "
            f"{max(0, free - MARGIN_BYTES) / mib:,.0f} MiB free"
        )


def _machine() -> int | None:
    try:
        for line in (_PROC / "meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    return None


def _groups() -> list[int]:
    # Each group on the way up may have a limit; the names differ between versions 1 and 2.
    found: list[int] = []
    try:
        lines = (_PROC / "self/cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = _CGROUPS / "memory" if controllers else _CGROUPS
        group = root / path.lstrip("/")
        for folder in [group, *group.parents]:
            free = _room(folder)
            if free is not None:
                found.append(free)
            if folder == root:
                break
    return found


def _room(folder: Path) -> int | None:
    for limit, usage, stat, cache in _FILES:
        try:
            most = int((folder / limit).read_text("ascii"))  # "max" is no number: no limit
            used = int((folder / usage).read_text("ascii"))
            rows = (folder / stat).read_text("ascii").splitlines()
        except (OSError, ValueError):
            continue
        # Cached files give way.
        used -= sum(int(row.split()[1]) for row in rows if row.split()[0] == cache)
        return max(0, most - used)
    return None

# SPDX-License-Identifier: Apache-2.0
"""Hardware profiles: what a GPU, its bus and a page fault cost.

A profile is data, a TOML file in ``deepum/machines`` or anywhere else, and every figure in it
names its source. Nothing in a profile depends on the model that runs or on the policy.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepum.errors import MachineError

BLOCK_BYTES = 2 << 20
"""Size of a UM block: the unit in which NVIDIA's driver manages unified memory (2 MiB)."""

CHUNK_BLOCKS = (1, 2, 4, 8, 16, 32, 64)
"""UM blocks that a chunk of remapped memory can have."""

_DTYPES = ("fp32_flops", "tf32_flops", "fp16_flops", "fp32_flops")


@dataclasses.dataclass(frozen=True)
class Vmm:
    """What moving memory by remapping costs, without page faults. Seconds, bytes."""

    bus_in_bytes_s: float
    """Host to device, copy engines, bytes/s."""
    bus_out_bytes_s: float
    """Device to host, copy engines, bytes/s."""
    bus_both_bytes_s: float
    """Sum of both directions when both are busy, bytes/s."""
    remap_bytes: tuple[float, ...]
    """Chunk sizes for which `remap_s` was measured, rising."""
    remap_s: tuple[float, ...]
    """Unmapping a chunk, mapping one and giving access, for each of these sizes."""
    zero_copy_bytes_s: float
    """Rate at which a kernel uses pinned host memory mapped at the same address, each way."""

    def chunk_remap_s(self) -> list[float]:
        """Return the cost of a remap for each of `CHUNK_BLOCKS`.

        Between measured sizes it is interpolated over the logarithm of the size, beyond them it
        stays that of the last.
        """
        sizes = np.log2(np.array(CHUNK_BLOCKS) * BLOCK_BYTES)
        return [float(x) for x in np.interp(sizes, np.log2(self.remap_bytes), self.remap_s)]


@dataclasses.dataclass(frozen=True)
class Machine:
    """One GPU with its host link. Seconds, bytes, FLOP/s; 1 GB = 1e9 bytes."""

    name: str
    title: str
    memory_bytes: int
    """Device memory a program can fill, bytes."""
    fp32_flops: float
    """Peak rate of single precision, FLOP/s (also taken for other types)."""
    tf32_flops: float
    """Peak rate of TF32 matrix work, FLOP/s; equal to fp32 where there is none."""
    fp16_flops: float
    """Peak rate of fp16/bf16 matrix work, FLOP/s."""
    memory_bytes_s: float
    """Peak device memory bandwidth, bytes/s."""
    compute_efficiency: float
    """Share of the peak rate that matrix products reach, 0..1."""
    conv_efficiency: float
    """Share of the peak rate that convolutions reach, 0..1."""
    memory_efficiency: float
    """Share of the peak bandwidth that real kernels reach, 0..1."""
    launch_s: float
    """Shortest time from one kernel's start to the next one's, seconds."""
    bus_in_bytes_s: float
    """Host to device, bytes/s."""
    bus_out_bytes_s: float
    """Device to host as eviction uses it, bytes/s."""
    bus_both_bytes_s: float
    """Sum of both directions when both are busy, bytes/s."""
    move_in_s: float
    """Fixed cost of one prefetch run, whatever its length, seconds."""
    move_out_s: float
    """Fixed cost of one eviction run, seconds."""
    max_run_blocks: int
    """Longest run of neighbouring blocks moved as one."""
    fault_batch_s: float
    """Fixed cost of a batch of faults: interrupt, fetch, replay, seconds."""
    fault_page_s: float
    """Driver's own time for each 4 KiB page that faults, transfers apart, seconds."""
    fault_window_blocks: int
    """Blocks a running kernel can have faulting at the same time."""
    fault_page_percent: float
    """Share of the touched pages that fault before the driver has fetched the rest, percent,
    where a kernel reads contiguous memory."""
    fault_page_percent_strided: float
    """The same where it does not: convolutions, batch norms and pooling over image planes."""
    scattered_pages: int
    """4 KiB pages that come with each scattered page that faults, itself included."""
    populate_s: float
    """Giving a block an empty frame (no transfer), seconds."""
    discard_s: float
    """Dropping a block without copying it, seconds."""
    fault_evict_ahead_blocks: int = 0
    """Evictions that the driver has under way while it serves the faults that wait for them: 0
    as in NVIDIA's driver, which evicts and moves in one block after the other."""
    vmm: Vmm | None = None
    """The costs of memory mode ``vmm``, where they are known."""
    sources: dict[str, str] = dataclasses.field(default_factory=dict, hash=False)
    """Field name -> where its figure comes from."""

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the shipped profiles, sorted."""
        folder = resources.files("deepum") / "machines"
        return sorted(
            Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml")
        )

    @classmethod
    def load(cls, name: str | Path | Machine) -> Machine:
        """Return a profile by shipped name or by the path of a TOML file.

        Raises
        ------
        MachineError
            The file is missing, is not TOML, or a figure is missing, unknown or senseless.
        """
        if isinstance(name, Machine):
            return name
        text = str(name)
        if text in cls.names():
            source = resources.files("deepum") / "machines" / f"{text}.toml"
            return cls.from_toml(source.read_text("utf-8"), text)
        path = Path(text)
        if not path.is_file():
            near = difflib.get_close_matches(text, cls.names(), 1)
            hint = f"did you mean {near[0]}?" if near else f"shipped: {', '.join(cls.names())}"
            raise MachineError(f"no machine profile or file named {text!r}; {hint}")
        try:
            return cls.from_toml(path.read_text("utf-8"), text)
        except (OSError, UnicodeDecodeError) as error:
            raise MachineError(f"cannot read machine file {text}: {error}") from error

    @classmethod
    def from_toml(cls, text: str, where: str) -> Machine:
        """Build a profile from the text of a TOML file; `where` names it in errors."""
        try:
            data: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise MachineError(f"machine file {where} is not valid TOML: {error}") from error
        fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(data) - set(fields))
        if unknown:
            near = difflib.get_close_matches(unknown[0], list(fields), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise MachineError(f"machine file {where}: unknown entry {unknown[0]!r}{hint}")
        optional = ("sources", "fault_evict_ahead_blocks", "vmm")
        missing = [name for name in fields if name not in data and name not in optional]
        if missing:
            raise MachineError(f"machine file {where}: missing {', '.join(missing)}")
        values = {name: cls._value(where, fields[name], data[name]) for name in data}
        machine = cls(**values)
        machine._check(where)
        return machine

    @staticmethod
    def _value(where: str, field: dataclasses.Field[Any], value: Any) -> Any:
        if field.name == "sources":
            if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
                raise MachineError(f"machine file {where}: sources must be a table of texts")
            return value
        if field.name == "vmm":
            return _vmm(where, value)
        if field.type == "str":
            if not isinstance(value, str):
                raise MachineError(f"machine file {where}: {field.name} must be a text")
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise MachineError(f"machine file {where}: {field.name} must be a number")
        if not math.isfinite(value):
            raise MachineError(f"machine file {where}: {field.name} must be finite")
        if field.type == "int":
            if value != int(value):
                raise MachineError(f"machine file {where}: {field.name} must be a whole number")
            return int(value)
        return float(value)

    def _check(self, where: str) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None or isinstance(value, str | dict | Vmm):
                continue
            zero_allowed = (
                field.name.endswith("_s") and not field.name.endswith("bytes_s")
            ) or field.name == "fault_evict_ahead_blocks"
            if value < 0 or (value == 0 and not zero_allowed):
                raise MachineError(f"machine file {where}: {field.name} must be above 0")
        for name in ("compute_efficiency", "conv_efficiency", "memory_efficiency"):
            if getattr(self, name) > 1:
                raise MachineError(f"machine file {where}: {name} is a share, at most 1")
        for name in ("fault_page_percent", "fault_page_percent_strided"):
            if getattr(self, name) > 100:
                raise MachineError(f"machine file {where}: {name} is at most 100")
        if self.memory_bytes < BLOCK_BYTES:
            raise MachineError(f"machine file {where}: memory_bytes is below one 2 MiB block")

    def costs_of_vmm(self) -> Vmm:
        """Return the costs of memory mode ``vmm``.

        Raises
        ------
        MachineError
            The profile does not have them.
        """
        if self.vmm is None:
            having = [name for name in self.names() if self.load(name).vmm is not None]
            raise MachineError(
                f"machine {self.name} has no [vmm] section, which memory mode vmm needs: measure "
                f"its costs (docs/machine-profiles.md), or take {' or '.join(having)}"
            )
        return self.vmm

    def kernel_time_s(
        self,
        flops: npt.ArrayLike,
        moved_bytes: npt.ArrayLike,
        dtype: npt.ArrayLike = 0,
        convolution: npt.ArrayLike = False,
    ) -> npt.NDArray[np.float64]:
        """Estimate kernel times with the roofline model (Williams et al., CACM 52(4), 2009).

        Parameters
        ----------
        flops, moved_bytes
            Work and memory traffic of each kernel.
        dtype
            0 fp32, 1 tf32, 2 fp16/bf16, 3 anything else, one for each kernel.
        convolution
            Whether each kernel is a convolution.

        Returns
        -------
        Seconds, ``max(launch, flops / (peak x efficiency), bytes / (bandwidth x efficiency))``.
        """
        peaks = np.array([getattr(self, name) for name in _DTYPES])
        peak = peaks[np.minimum(np.asarray(dtype, dtype=np.intp), 3)]
        share = np.where(convolution, self.conv_efficiency, self.compute_efficiency)
        compute = np.asarray(flops, dtype=np.float64) / (peak * share)
        bandwidth = self.memory_bytes_s * self.memory_efficiency
        memory = np.asarray(moved_bytes, dtype=np.float64) / bandwidth
        slowest = np.maximum(np.maximum(compute, memory), self.launch_s)
        return np.asarray(slowest, dtype=np.float64)


def _vmm(where: str, value: Any) -> Vmm:
    if not isinstance(value, dict):
        raise MachineError(f"machine file {where}: vmm must be a table, [vmm]")
    fields = dataclasses.fields(Vmm)
    wrong = sorted(value.keys() ^ {field.name for field in fields}, key=lambda n: n not in value)
    if wrong:
        what = "unknown entry" if wrong[0] in value else "missing"
        raise MachineError(f"machine file {where}: [vmm]: {what} {wrong[0]}")
    values: dict[str, Any] = {}
    for field in fields:
        several = field.type != "float"
        numbers = value[field.name] if several else [value[field.name]]
        if not isinstance(numbers, list) or not numbers or not all(map(_positive, numbers)):
            wanted = "a list of numbers" if several else "a number"
            raise MachineError(f"machine file {where}: [vmm] {field.name} must be {wanted} above 0")
        values[field.name] = tuple(map(float, numbers)) if several else float(numbers[0])
    sizes = values["remap_bytes"]
    if len(sizes) != len(values["remap_s"]) or list(sizes) != sorted(set(sizes)):
        raise MachineError(
            f"machine file {where}: [vmm] remap_bytes must rise and have a remap_s for each"
        )
    return Vmm(**values)


def _positive(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )

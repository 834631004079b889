# SPDX-License-Identifier: Apache-2.0
"""Steers the fake driver and calls it, in the process that has it loaded."""

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import NamedTuple

READ, WRITE, ATOMIC = 1, 2, 3
NOWHERE, HOST, DEVICE = 0, 1, 2
MIB = 1 << 20
PAGE = 64 << 10
NON_BLOCKING = 1


class CudaError(Exception):
    """A driver function returned an error."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function}: {code}")
        self.function, self.code = function, code


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", c_int), ("id", c_int))


class FrameProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", c_uint64),
    )


class FrameAccess(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", c_int))


TO_DEVICE = Location(1, 0)
TO_HOST = Location(2, 0)
OF_NODE = Location(3, 0)  # the host's NUMA node
NO_ACCESS, READ_ONLY, READ_WRITE = 0, 1, 3


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


class FaultRecord(ctypes.Structure):
    """As struct fake_fault has it."""

    _fields_ = (("address", c_uint64), ("time_ns", c_uint64), ("access", c_uint32), ("n", c_uint32))


class Many(ctypes.Structure):
    """The struct that add_many takes by value."""

    _fields_ = (
        ("add", c_uint32),
        ("used", c_uint32),
        ("each", c_uint64),
        ("pointers", c_uint64 * 32),
    )


class Lists(ctypes.Structure):
    """The struct that the kernel `LISTS` takes by value: pairs of tensors, as PyTorch has it."""

    _fields_ = (
        ("addresses", (c_uint64 * 64) * 2),
        ("numel", ctypes.c_int64 * 64),
        ("block_to_tensor", ctypes.c_uint8 * 320),
        ("block_to_chunk", ctypes.c_int32 * 320),
        ("start", ctypes.c_int32),
    )


LISTS = "_ZN2at6native25multi_tensor_apply_kernelINS0_18TensorListMetadataILi2EEEJEEEvT_"


class Fault(NamedTuple):
    """A page that the device touched and that was not there."""

    address: int
    time_ns: int
    access: int


KERNELS: dict[str, tuple[type, ...]] = {
    "fill": (c_uint64, c_uint64, c_uint32),  # to, count, value
    "copy": (c_uint64, c_uint64, c_uint64),  # to, from, count
    "axpy": (c_uint64, c_uint64, c_uint64, c_uint32),  # y, x, count, a
    "reduce": (c_uint64, c_uint64, c_uint64),  # to (64 bits), from, count
    "gather": (c_uint64, c_uint64, c_uint64, c_uint64),  # to, table, index, count
    "add_many": (Many, c_uint32),
    LISTS: (Lists,),
    "nothing": (c_uint32,),
}
KERNEL = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)
HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)


@dataclass(frozen=True)
class Array:
    """Words of 32 bits in memory that the driver gave out."""

    address: int
    count: int

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.count * 4

    @property
    def words(self) -> ctypes.Array:
        """Its words as the host sees them, without telling the driver."""
        return (c_uint32 * self.count).from_address(self.address)

    def at(self, word: int) -> int:
        """Return the address of a word."""
        return self.address + 4 * word


class Driver:
    """The fake driver of this process."""

    def __init__(self, **settings: int) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        for name in ("fake_calls", "fake_resident"):
            getattr(self.library, name).restype = c_uint64
        self.library.fake_failed.restype = c_char_p
        self.module = c_void_p()
        self._kept: list = []
        for name, value in settings.items():
            self.set(name, value)

    # Steering -----------------------------------------------------------------------------------

    def set(self, name: str, value: int) -> None:
        """Change a setting (src/values.h lists them)."""
        assert not self.library.fake_set(name.encode(), c_uint64(value)), f"no setting {name}"

    def get(self, name: str) -> int:
        """Return a setting, a counter or a gauge."""
        value = c_uint64()
        assert not self.library.fake_get(name.encode(), byref(value)), f"no value {name}"
        return value.value

    def delay(self, function: str, fixed_ns: int = 0, random_ns: int = 0) -> None:
        """Make a driver function, "exec:<kind>" or "*" take longer."""
        self.library.fake_delay(function.encode(), c_uint64(fixed_ns), c_uint64(random_ns))

    def fail(self, function: str, nth: int, result: int, times: int = 1) -> None:
        """Make the nth call from now, and `times` - 1 more, return `result` and do nothing."""
        self.library.fake_fail(function.encode(), c_uint64(nth), result, c_uint64(times))

    def calls(self, function: str) -> int:
        """Return how often a function was called ("*": all of them)."""
        return self.library.fake_calls(function.encode())

    def failed(self) -> str:
        """Return the function whose call failed by plan last, with its suffix; empty if none."""
        return (self.library.fake_failed() or b"").decode()

    def reset(self) -> None:
        """Counters to zero, faults forgotten, delays and failures taken away."""
        self.library.fake_reset()

    def faults(self) -> list[Fault]:
        """Return the faults since the last look."""
        return list(self._faults())

    def _faults(self) -> Iterator[Fault]:
        record = FaultRecord()
        while self.library.fake_next_fault(byref(record)):
            yield Fault(record.address, record.time_ns, record.access)

    def where(self, address: int) -> int:
        """Return NOWHERE, HOST or DEVICE; -1 outside managed memory."""
        return self.library.fake_where(c_uint64(address), None)

    def discarded(self, address: int) -> bool:
        """Return whether a page was discarded and neither written nor prefetched since."""
        state = c_int()
        assert self.library.fake_where(c_uint64(address), byref(state)) >= 0
        return bool(state.value)

    def resident(self, address: int, size: int) -> int:
        """Return how many bytes of a range are on the device."""
        return self.library.fake_resident(c_uint64(address), c_uint64(size))

    def host_touch(self, address: int, size: int, access: int = READ) -> None:
        """Do what an access of the host does: bring the pages back."""
        assert self.library.fake_host_touch(c_uint64(address), c_uint64(size), access)

    def access(self, address: int) -> int:
        """Return the access of the device to the mapping at an address; -1 where none is."""
        return self.library.fake_access(c_uint64(address))

    # The driver ---------------------------------------------------------------------------------

    def raw(self, function: str, *args: object) -> int:
        """Call a driver function and return its result; plain integers go as 64 bits."""
        full = [c_uint64(a) if type(a) is int else a for a in args]
        return getattr(self.library, function)(*full)

    def call(self, function: str, *args: object) -> None:
        """Call a driver function that must succeed."""
        if code := self.raw(function, *args):
            raise CudaError(function, code)

    def start(self) -> None:
        """Initialize, and make the primary context current in this thread."""
        if self.get("devices") == 0:
            return
        self.call("cuInit", c_uint(0))
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), c_int(0))
        self.call("cuCtxSetCurrent", context)
        self.context = context
        self.call("cuModuleLoadData", byref(self.module), c_char_p(b"any image"))

    def enter(self) -> None:
        """Make the context current in another thread."""
        self.call("cuCtxSetCurrent", self.context)

    def managed(self, count: int) -> Array:
        """Allocate words of managed memory."""
        return self._allocate("cuMemAllocManaged", count, c_uint(1))

    def memory(self, count: int) -> Array:
        """Allocate words of device memory."""
        return self._allocate("cuMemAlloc_v2", count)

    def pinned(self, count: int) -> Array:
        """Allocate words of pinned host memory."""
        return self._allocate("cuMemHostAlloc", count, c_uint(0))

    def _allocate(self, function: str, count: int, *more: object) -> Array:
        address = c_uint64()
        self.call(function, byref(address), c_size_t(count * 4), *more)
        return Array(address.value, count)

    def free(self, array: Array) -> None:
        """Give managed or device memory back."""
        self.call("cuMemFree_v2", array.address)

    def reserve(self, size: int, align: int = 0) -> int:
        """Reserve addresses; nothing is mapped there yet."""
        address = c_uint64()
        self.call("cuMemAddressReserve", byref(address), size, align, 0, 0)
        return address.value

    def unreserve(self, address: int, size: int) -> None:
        """Give a reservation back."""
        self.call("cuMemAddressFree", address, size)

    def frame(self, size: int, place: Location = TO_DEVICE) -> int:
        """Create physical memory, of the device or (OF_NODE) of the host."""
        handle = c_uint64()
        wanted = FrameProperties(1, 0, place)
        self.call("cuMemCreate", byref(handle), size, byref(wanted), 0)
        return handle.value

    def release(self, frame: int) -> None:
        """Give physical memory back, once nothing maps it."""
        self.call("cuMemRelease", frame)

    def map(self, address: int, frame: int, size: int, access: int = READ_WRITE) -> Array:
        """Map a frame and let the device use it."""
        self.call("cuMemMap", address, size, 0, frame, 0)
        self.let(address, size, access)
        return Array(address, size // 4)

    def let(self, address: int, size: int, access: int) -> None:
        """Set what the device may do with mapped memory."""
        self.call("cuMemSetAccess", address, size, byref(FrameAccess(TO_DEVICE, access)), 1)

    def unmap(self, address: int, size: int) -> None:
        """Take mappings away."""
        self.call("cuMemUnmap", address, size)

    def stream(self, flags: int = NON_BLOCKING) -> c_void_p:
        """Make a stream."""
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), c_uint(flags))
        return stream

    def event(self, flags: int = 2) -> c_void_p:
        """Make an event, without timing unless told."""
        event = c_void_p()
        self.call("cuEventCreate", byref(event), c_uint(flags))
        return event

    def function(self, name: str) -> c_void_p:
        """Return the CUfunction of a kernel."""
        function = c_void_p()
        self.call("cuModuleGetFunction", byref(function), self.module, name.encode())
        return function

    def kernel(self, name: str) -> c_void_p:
        """Return the CUkernel of a kernel."""
        library, kernel = c_void_p(), c_void_p()
        none = c_void_p()
        self.call(
            "cuLibraryLoadData",
            byref(library),
            b"any",
            none,
            none,
            c_uint(0),
            none,
            none,
            c_uint(0),
        )
        self.call("cuLibraryGetKernel", byref(kernel), library, name.encode())
        return kernel

    def register(self, name: str, types: Sequence[type], body: Callable[[], None]) -> None:
        """Make a kernel of a Python function, which is called in the stream's thread."""
        run = KERNEL(lambda _params, _launch: body())
        offsets, end = [], 0
        for kind in types:
            align = ctypes.alignment(kind)
            end = (end + align - 1) // align * align
            offsets.append(end)
            end += ctypes.sizeof(kind)
        self._kept.append(run)
        count = len(types)
        self.library.fake_register_kernel(
            name.encode(),
            run,
            (c_uint32 * count)(*offsets),
            (c_uint32 * count)(*(ctypes.sizeof(kind) for kind in types)),
            c_uint32(count),
        )
        KERNELS[name] = tuple(types)

    def launch(
        self,
        name: str,
        *args: object,
        stream: c_void_p | None = None,
        form: str = "params",
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (32, 1, 1),
    ) -> None:
        """Launch a kernel.

        `form` says how: "params" and "extra" through cuLaunchKernel, "ex" through cuLaunchKernelEx,
        "kernel" with a CUkernel in the place of the function.
        """
        values = [
            arg if isinstance(arg, ctypes.Structure) else kind(arg)
            for kind, arg in zip(KERNELS[name], args, strict=True)
        ]
        handle = self.kernel(name) if form == "kernel" else self.function(name)
        pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        none = c_void_p()
        if form == "ex":
            config = LaunchConfig(grid, block, 0, stream)
            self.call("cuLaunchKernelEx", byref(config), handle, pointers, none)
            return
        shape = (*map(c_uint, (*grid, *block)), c_uint(0), stream or none)
        if form != "extra":
            self.call("cuLaunchKernel", handle, *shape, pointers, none)
            return
        packed = type("Packed", (ctypes.Structure,), {
            "_fields_": [(f"a{i}", type(value)) for i, value in enumerate(values)]
        })(*values)  # fmt: skip
        size = c_size_t(ctypes.sizeof(packed))
        keys = (c_void_p * 5)(1, ctypes.addressof(packed), 2, ctypes.addressof(size), 0)
        self.call("cuLaunchKernel", handle, *shape, none, keys)

    def fill(self, array: Array, value: int, stream: c_void_p | None = None) -> None:
        """Launch `fill` over an array."""
        self.launch("fill", array.address, array.count, value, stream=stream)

    def prefetch(
        self, array: Array, place: Location = TO_DEVICE, stream: c_void_p | None = None
    ) -> None:
        """Prefetch an array."""
        none = c_void_p()
        self.call(
            "cuMemPrefetchAsync_v2",
            array.address,
            c_size_t(array.bytes),
            place,
            c_uint(0),
            stream or none,
        )

    def discard(self, *arrays: Array, stream: c_void_p) -> None:
        """Discard arrays in one batch."""
        count = len(arrays)
        self.call(
            "cuMemDiscardBatchAsync",
            (c_uint64 * count)(*(a.address for a in arrays)),
            (c_size_t * count)(*(a.bytes for a in arrays)),
            c_size_t(count),
            c_uint64(0),
            stream,
        )

    def sync(self, stream: c_void_p | None = None) -> None:
        """Wait for a stream, or for the device."""
        if stream is None:
            self.call("cuCtxSynchronize")
        else:
            self.call("cuStreamSynchronize", stream)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)

# SPDX-License-Identifier: Apache-2.0
"""Records what a PyTorch program does to memory, operator by operator, under fake tensors.

The tracer is a dispatch mode. Entered after a ``FakeTensorMode`` it sees every operator below
autograd, with the storages that it reads and writes; a finalizer on each storage gives the exact
moment at which PyTorch would return the memory to its allocator. The result is a log of
:class:`Launch`, :class:`Alloc`, :class:`Free`, :class:`Host` and :class:`Step` events without
addresses: `deepum.record.recorder` plays it into a trace.

What an operator is made of:

- a view launches nothing;
- ``_foreach_`` and ``_fused_`` operators are recorded as one kernel for each tensor of the list;
- the backward of a convolution is one kernel for each gradient it makes;
- the dense backward of a lookup (embedding, nll_loss) clears its result, then scatters into it;
- adding a sparse gradient sums equal rows in a workspace, then adds those rows;
- everything else is one kernel.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from deepum.record import operators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Access(NamedTuple):
    """One operand of a launch: a range of a storage, in bytes, and what is done to it."""

    storage: int
    mode: str
    """``"r"``, ``"w"`` or ``"rw"``."""
    offset: int
    length: int
    traffic: int
    """Bytes read and written: less than `length` where a view has holes."""
    touches: int = 0
    """Rows looked up at random, or 0 if the range is gone through in order."""


class Launch(NamedTuple):
    """A kernel."""

    name: str
    key: int
    """Hash of everything but pointers and floating-point scalars."""
    operands: tuple[Access, ...]
    flops: float
    dtype: str
    bus: str = ""
    """``"in"`` or ``"out"`` for a copy between the host and the device."""

    @property
    def traffic(self) -> int:
        """Bytes read and written."""
        return sum(x.traffic for x in self.operands)


class Alloc(NamedTuple):
    """A storage appears."""

    storage: int
    bytes: int


class Free(NamedTuple):
    """A storage goes back to the allocator."""

    storage: int


class Host(NamedTuple):
    """The program gives the device nothing for a while."""

    ns: int


class Step(NamedTuple):
    """A training step begins."""


Event = Launch | Alloc | Free | Host | Step

_ADD = torch.ops.aten.add_.Tensor
_CLONE = torch.ops.aten.clone.default

_PLAIN = (int, str, torch.dtype, torch.device, torch.layout, torch.memory_format)

_DTYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "fp16",
}


class _Plan(NamedTuple):
    """What is known of an operator before its arguments are."""

    name: str
    launches: bool
    written: tuple[tuple[int, str], ...]
    overwrites: bool
    per_tensor: bool
    flops: Callable[..., int] | None


class Tracer(TorchDispatchMode):
    """Logs the kernels, allocations and frees of one device.

    Parameters
    ----------
    device
        The device type to record, ``"cuda"`` or ``"cpu"``; tensors elsewhere are ignored.

    Attributes
    ----------
    log
        The events, in order.
    kinds
        Storage -> what it holds, as far as known so far.
    """

    def __init__(self, device: str = "cuda") -> None:
        super().__init__()
        self.device = device
        self.log: list[Event] = []
        self.kinds: dict[int, str] = {}
        self.steps = 0
        self.closed = False
        self._storages = WeakIdKeyDictionary()
        self._count = 0
        self._plans: dict[Any, _Plan] = {}
        self._keys: dict[Any, int] = {}
        self._flops: dict[Any, float] = {}

    # what the recorder tells the tracer

    def step(self) -> None:
        """Begin the next training step; what came before the first is set-up."""
        self.steps += 1
        self.log.append(Step())

    def host(self, ns: int) -> None:
        """Note that the program gives the device nothing for `ns` nanoseconds."""
        self.log.append(Host(int(ns)))

    def mark(self, tensors: Iterable[Any], kind: str) -> None:
        """Say what tensors hold: ``"parameter"``, ``"gradient"``, ``"optimizer"``..."""
        for tensor in tensors:
            for part in _parts(tensor):
                if self._here(part):
                    storage = self._storages.get(part.untyped_storage())
                    if storage is not None:
                        self.kinds[storage] = kind

    def close(self) -> None:
        """Ignore everything from now on: tensors may die in any order after the recording."""
        self.closed = True

    # the dispatch mode

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        plan = self._plans.get(func)
        if plan is None:
            plan = self._plans[func] = _plan(func)
        # A storage made outside the mode appears where it is first used.
        for tensor in _tensors((args, kwargs)):
            self._note(tensor)
        if func is _CLONE and args[0].layout is torch.sparse_coo:
            # The engine takes a sparse gradient over; only under a mode does it copy it, and a copy
            # of a fake sparse tensor loses its size.
            return torch.sparse_coo_tensor(
                args[0]._indices(), args[0]._values(), args[0].shape, check_invariants=False
            )
        # Fake sparse tensors cannot be added to anything either.
        sparse_sum = func is _ADD and not _is_sparse(args[0]) and _is_sparse(args[1])
        out = args[0] if sparse_sum else func(*args, **kwargs)
        if self.closed:
            return out
        results = [x for x in _tensors(out) if self._note(x)]
        if plan.launches:
            self._launch(func, plan, args, kwargs, out, results)
        return out

    def _here(self, tensor: Any) -> bool:
        # FakeTensor.device dispatches an operator of its own; the field does not.
        device = getattr(tensor, "fake_device", None) or tensor.device
        return bool(device.type == self.device)

    def _note(self, tensor: Any) -> bool:
        """See a tensor: its storage appears in the log if it is new. False if it is elsewhere."""
        if self.closed or not self._here(tensor):
            return False
        for part in _parts(tensor):
            storage = part.untyped_storage()
            size = storage.nbytes()
            if storage in self._storages or size == 0:
                continue
            handle = self._count
            self._count += 1
            self._storages[storage] = handle
            self.log.append(Alloc(handle, size))
            weakref.finalize(storage, self._freed, handle).atexit = False
        if isinstance(tensor, torch.nn.Parameter):
            self.mark([tensor], "parameter")
        return True

    def workspace(self, size: int) -> int:
        """Allocate memory that an operator uses inside; the caller logs its :class:`Free`."""
        handle = self._count
        self._count += 1
        self.log.append(Alloc(handle, size))
        self.kinds[handle] = "workspace"
        return handle

    def _freed(self, handle: int) -> None:
        if not self.closed:
            self.log.append(Free(handle))

    # from an operator to its kernels

    def _launch(
        self, func: Any, plan: _Plan, args: Any, kwargs: Any, out: Any, results: list[Any]
    ) -> None:
        inputs = list(_tensors((args, kwargs)))
        here = [x for x in inputs if self._here(x)]
        if not here and not results:
            return
        shape = (func._name, _shape(args), _shape(tuple(sorted(kwargs.items()))))
        key = self._keys.get(shape)
        if key is None:
            digest = hashlib.blake2b(repr(shape).encode(), digest_size=8).digest()
            key = self._keys[shape] = int.from_bytes(digest, "little")
        flops = self._flops.get(shape)
        if flops is None:
            count = plan.flops(*args, **kwargs, out_val=out) if plan.flops else 0
            flops = self._flops[shape] = float(count)
        written = {
            id(tensor)
            for place, name in plan.written
            if name != "grads" or kwargs.get("grad_scale") is not None
            for tensor in _tensors(args[place] if place < len(args) else kwargs.get(name))
        }
        if plan.name in operators.STATISTICS and args[5]:
            written |= {id(tensor) for tensor in _tensors(args[3:5])}
        name = plan.name
        bus = ""
        if name in ("aten::_to_copy", "aten::copy_"):
            bus = self._direction(func, inputs, here, written, results)
            name = {"in": "memcpy HtoD", "out": "memcpy DtoH"}.get(bus, name)
        if self.steps and (bus == "in" or (not here and name in operators.RANDOM)):
            self.mark([x for x in results if id(x) not in written], "input")
        kernel = _Kernel(self, name, key, flops, bus)
        if plan.per_tensor:
            kernel.each(args, kwargs, out, written)
        elif name == "aten::convolution_backward":
            kernel.convolution_backward(args, out)
        elif name in operators.SCATTERS and results[0].layout is torch.strided:
            kernel.scatter(args, results)
        elif name == "aten::add_" and _is_sparse(args[1]):
            kernel.add_sparse(args[0], args[1])
        else:
            if name in operators.SHAPE_ONLY:
                here = []
            kernel.whole(args, here, results, written, plan.overwrites)

    def _direction(
        self, func: Any, inputs: list[Any], here: list[Any], written: set[int], results: list[Any]
    ) -> str:
        source = [x for x in inputs if id(x) not in written]
        from_here = any(self._here(x) for x in source)
        to_here = any(self._here(x) for x in results) or any(id(x) in written for x in here)
        if to_here and not from_here:
            return "in"
        return "out" if from_here and not to_here else ""


class _Kernel:
    """Turns one operator into its launches."""

    def __init__(self, tracer: Tracer, name: str, key: int, flops: float, bus: str) -> None:
        self.tracer = tracer
        self.name = name
        self.key = key
        self.flops = flops
        self.bus = bus

    def whole(
        self, args: Any, inputs: list[Any], results: list[Any], written: set[int], overwrites: bool
    ) -> None:
        """One kernel: the inputs in the operator's order, then the results."""
        table, touches = self._lookup(args)
        accesses: list[Access] = []
        for tensor in inputs:
            mode = "r"
            if id(tensor) in written:
                mode = "w" if overwrites else "rw"
            accesses += self._access(tensor, mode, touches if tensor is table else 0)
        before = {x.storage for x in accesses}
        for tensor in results:
            if id(tensor) not in written:
                made = self._access(tensor, "w")
                # A sparse result may hold an input as its indices.
                accesses += [x for x in made if x.storage not in before]
        self._emit(self.name, accesses, _dtype(results or inputs), self.flops)

    def each(self, args: Any, kwargs: Any, out: Any, written: set[int]) -> None:
        """One kernel for each tensor of an operator's lists."""
        values = [*args, *kwargs.values()]
        if out is not None:
            values.append(out)
        lists = [x for x in values if isinstance(x, list | tuple) and _is_tensors(x)]
        shared = [x for x in values if isinstance(x, torch.Tensor)]
        name = self.name.replace("_foreach_", "", 1)
        seen_out = {id(x) for x in out} if isinstance(out, list | tuple) else set()
        for i in range(max((len(x) for x in lists), default=0)):
            accesses: list[Access] = []
            mine = []
            for tensor in [*(x[i] for x in lists if i < len(x)), *shared]:
                if not self.tracer._here(tensor):
                    continue
                mode = "r"
                if id(tensor) in written:
                    mode = "w" if name in operators.OVERWRITES else "rw"
                elif id(tensor) in seen_out:
                    mode = "w"
                accesses += self._access(tensor, mode)
                mine.append((tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())))
            if accesses:
                digest = hashlib.blake2b(repr((name, mine)).encode(), digest_size=8).digest()
                self._emit(name, accesses, "fp32", 0.0, int.from_bytes(digest, "little"))

    def convolution_backward(self, args: Any, out: Any) -> None:
        """The gradients of the input, the weight and the bias, each by its own kernel."""
        grad, data, weight = args[:3]
        parts = [
            ("_input", [grad, weight], out[0]),
            ("_weight", [grad, data], out[1]),
            ("_bias", [grad], out[2]),
        ]
        products = sum(x is not None for x in out[:2])
        for suffix, reads, result in parts:
            if result is None:
                continue
            accesses = [x for tensor in reads for x in self._access(tensor, "r")]
            accesses += self._access(result, "w")
            flops = self.flops / products if suffix != "_bias" and products else 0.0
            self._emit(self.name + suffix, accesses, _dtype([result]), flops)

    def scatter(self, args: Any, results: list[Any]) -> None:
        """Clear the result, then write rows of it at random."""
        result = results[0]
        touches = int(args[operators.SCATTERS[self.name]].numel())
        self._emit("aten::zero_", self._access(result, "w"), _dtype([result]), 0.0)
        accesses = [
            x
            for tensor in _tensors(args)
            if self.tracer._here(tensor)
            for x in self._access(tensor, "r")
        ]
        accesses += self._access(result, "rw", touches)
        self._emit(self.name, accesses, _dtype([result]), self.flops)

    def add_sparse(self, target: Any, sparse: Any) -> None:
        """Sum the rows that occur twice into a workspace, then add its rows to the target."""
        indices, values = _parts(sparse)
        size = values.numel() * values.element_size()
        if size == 0:
            return
        workspace = self.tracer.workspace(size)
        room = Access(workspace, "w", 0, size, size)
        reads = self._access(indices, "r") + self._access(values, "r")
        self._emit("aten::coalesce", [*reads, room], _dtype([values]), 0.0)
        accesses = self._access(target, "rw", int(values.shape[0]))
        accesses += [*self._access(indices, "r"), room._replace(mode="r")]
        self._emit(self.name, accesses, _dtype([target]), 0.0)
        self.tracer.log.append(Free(workspace))

    def _lookup(self, args: Any) -> tuple[Any, int]:
        """The argument that is looked up at random, if there is one, and how many rows of it."""
        rule = operators.LOOKUPS.get(self.name)
        if rule is not None:
            return args[rule[0]], int(args[rule[1]].numel())
        if self.name in ("aten::index.Tensor", "aten::index", "aten::index_put_"):
            first = args[1][0] if args[1] else None
            if first is not None and first.dtype is not torch.bool:
                return args[0], int(first.numel())
        return None, 0

    def _access(self, tensor: Any, mode: str, touches: int = 0) -> list[Access]:
        found = []
        for part in _parts(tensor):
            handle = self.tracer._storages.get(part.untyped_storage())
            if handle is None:
                continue
            offset, length, traffic = _extent(part)
            if length == 0:
                continue
            if touches:
                row = part.stride(0) * part.element_size() if part.dim() else part.element_size()
                traffic = min(traffic, touches * max(row, 1))
            found.append(Access(handle, mode, offset, length, traffic * len(mode), touches))
        return found

    def _emit(
        self,
        name: str,
        accesses: list[Access],
        dtype: str,
        flops: float,
        key: int | None = None,
    ) -> None:
        key = self.key if key is None else key
        if flops and dtype == "fp32" and _tf32(name):
            dtype = "tf32"
        self.tracer.log.append(Launch(name, key, _merged(accesses), flops, dtype, self.bus))


def _merged(accesses: list[Access]) -> tuple[Access, ...]:
    """The same range twice is one operand: the first place, with both modes."""
    merged: dict[tuple[int, int, int, int], Access] = {}
    for x in accesses:
        place = (x.storage, x.offset, x.length, x.touches)
        before = merged.get(place)
        if before is None:
            merged[place] = x
        elif before.mode != x.mode:
            traffic = max(before.traffic, x.traffic)
            merged[place] = x._replace(
                mode="rw", traffic=traffic if "rw" in x.mode else traffic * 2
            )
    return tuple(merged.values())


def _plan(func: Any) -> _Plan:
    schema = func._schema
    name = str(schema.name)
    packet = func._overloadpacket
    marked = {
        (place, argument.name)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    plain = name.split("::", 1)[1]
    out_only = any(x.name == "out" or x.is_out for x in schema.arguments)
    return _Plan(
        name=name,
        launches=not func.is_view and name not in operators.NO_KERNEL,
        written=tuple(sorted(marked)),
        overwrites=name in operators.OVERWRITES or out_only,
        per_tensor=plain.startswith(("_foreach_", "_fused_")) and "dropout" not in plain,
        flops=flop_registry.get(packet),
    )


def _tensors(value: Any) -> Iterator[Any]:
    """The tensors in nested tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for x in value:
            yield from _tensors(x)
    elif isinstance(value, dict):
        for x in value.values():
            yield from _tensors(x)


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo


def _is_tensors(values: Any) -> bool:
    return bool(values) and all(isinstance(x, torch.Tensor) for x in values)


def _parts(tensor: Any) -> tuple[Any, ...]:
    """The strided tensors in a tensor: itself, or the indices and values of a sparse one."""
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return (tensor._indices(), tensor._values())
    return ()


def _extent(tensor: Any) -> tuple[int, int, int]:
    """Offset and length of the bytes that a view spans, and how many of them it holds."""
    size = tensor.element_size()
    if tensor.numel() == 0:
        return 0, 0, 0
    strides = [(n, s) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s]
    span = 1 + sum((n - 1) * s for n, s in strides)
    held = min(math.prod(n for n, _ in strides), span)
    return tensor.storage_offset() * size, span * size, held * size


def _dtype(tensors: list[Any]) -> str:
    for tensor in tensors:
        if tensor.dtype in _DTYPES:
            return _DTYPES[tensor.dtype]
    return "other"


def _tf32(name: str) -> bool:
    """Whether PyTorch lets a product of fp32 tensors be computed in TF32."""
    backends = torch.backends
    allowed = backends.cudnn if "convolution" in name else backends.cuda.matmul
    return bool(allowed.allow_tf32)


def _shape(value: Any) -> Any:
    """What a launch key may depend on: shapes and whole numbers, no pointers, no floats.

    A learning rate changes from step to step, so floats would make every step a new one.
    """
    if isinstance(value, torch.Tensor):
        layout = value.stride() if value.layout is torch.strided else ()
        return (value.dtype, tuple(value.shape), tuple(layout))
    if isinstance(value, list | tuple):
        return tuple(_shape(x) for x in value)
    return value if value is None or isinstance(value, _PLAIN) else type(value).__name__

# SPDX-License-Identifier: Apache-2.0
"""The tracer: what each operator reads and writes, when storages live, how much work is done."""

import math
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from deepum.record.models.gpt2 import CONFIGS, GPT2  # noqa: E402
from deepum.record.tracer import Alloc, Free, Launch, Step  # noqa: E402

pytestmark = pytest.mark.torch


def one(observe, launches, operator, *tensors):
    """Run one operator on tensors made in the set-up; return its launches and its storages."""

    def make_step():
        made = [make() for make in tensors]
        return lambda: operator(*made)

    return launches(observe(make_step))


def small(*shape, dtype=None):
    return lambda: torch.zeros(*shape, dtype=dtype)


def ids(*shape):
    return lambda: torch.zeros(*shape, dtype=torch.int64)


def modes(launch):
    return [(x.storage, x.mode) for x in launch.operands]


# Storages are numbered in the order in which they appear: first the tensors of the set-up.
OPERATORS = [
    ("add", torch.add, [small(8), small(8)], [(0, "r"), (1, "r"), (2, "w")]),
    ("same twice", lambda a: a * a, [small(8)], [(0, "r"), (1, "w")]),
    ("in place", lambda a, b: a.add_(b), [small(8), small(8)], [(0, "rw"), (1, "r")]),
    ("in place with itself", lambda a: a.mul_(a), [small(8)], [(0, "rw")]),
    ("zero", lambda a: a.zero_(), [small(8)], [(0, "w")]),
    ("fill", lambda a: a.fill_(2.0), [small(8)], [(0, "w")]),
    ("random in place", lambda a: a.normal_(), [small(8)], [(0, "w")]),
    ("copy", lambda a, b: a.copy_(b), [small(8), small(8)], [(0, "w"), (1, "r")]),
    ("out", lambda a, b, c: torch.mul(a, b, out=c), [small(8)] * 3, [(0, "r"), (1, "r"), (2, "w")]),
    ("zeros_like", torch.zeros_like, [small(8)], [(1, "w")]),
    ("new_ones", lambda a: a.new_ones(4), [small(8)], [(1, "w")]),
    ("clone", torch.clone, [small(8)], [(0, "r"), (1, "w")]),
    ("matmul", torch.mm, [small(4, 8), small(8, 2)], [(0, "r"), (1, "r"), (2, "w")]),
    (
        "dropout",
        lambda a: torch.nn.functional.dropout(a, 0.5),
        [small(8)],
        [(0, "r"), (1, "w"), (2, "w")],
    ),
    (
        "batch norm in training",
        lambda a, m, v: torch.nn.functional.batch_norm(a, m, v, training=True),
        [small(4, 8), small(8), small(8)],
        [(0, "r"), (1, "rw"), (2, "rw"), (3, "w"), (4, "w"), (5, "w")],
    ),
    (
        "batch norm in evaluation",
        lambda a, m, v: torch.nn.functional.batch_norm(a, m, v, training=False),
        [small(4, 8), small(8), small(8)],
        [(0, "r"), (1, "r"), (2, "r"), (3, "w"), (4, "w"), (5, "w")],
    ),
    ("addcmul_", lambda a, b: a.addcmul_(b, b), [small(8), small(8)], [(0, "rw"), (1, "r")]),
    ("max with indices", lambda a: a.max(0), [small(8, 4)], [(0, "r"), (1, "w"), (2, "w")]),
]


@pytest.mark.parametrize(
    ("operator", "tensors", "expected"), [x[1:] for x in OPERATORS], ids=[x[0] for x in OPERATORS]
)
def test_operands(observe, launches, operator, tensors, expected):
    (launch,) = one(observe, launches, operator, *tensors)
    assert modes(launch) == expected


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.view(2, 4),
        lambda a: a.view(2, 4).t(),
        lambda a: a[2:],
        lambda a: a.split(2),
        lambda a: a.detach(),
        lambda a: a.expand(3, 8),
        lambda a: torch.empty(4),
        lambda a: torch.empty_like(a),
        lambda a: a.new_empty(3),
    ],
)
def test_views_and_empty_tensors_launch_nothing(observe, launches, view):
    assert one(observe, launches, view, small(8)) == []


def test_ranges_of_views(observe, launches):
    def step(a, b):
        torch.add(a[2:4], b[:, 1:3])  # rows, and columns with holes

    (launch,) = one(observe, launches, step, small(4, 2), small(2, 8))
    rows, columns, out = launch.operands
    assert (rows.offset, rows.length, rows.traffic) == (16, 16, 16)
    assert (columns.offset, columns.length, columns.traffic) == (4, (8 + 2) * 4, 16)
    assert (out.offset, out.length, out.traffic) == (0, 16, 16)


def test_broadcast_reads_once(observe, launches):
    (launch,) = one(observe, launches, lambda a: a.expand(100, 8).sum(), small(8))
    assert launch.operands[0].traffic == 32


def test_foreach_is_a_kernel_for_each_tensor(observe, launches):
    def step(*tensors):
        torch._foreach_add_(list(tensors[:2]), list(tensors[2:]))
        return torch._foreach_sqrt(list(tensors[2:]))

    found = one(observe, launches, step, small(8), small(4), small(8), small(4))
    assert [(x.name, modes(x)) for x in found] == [
        ("aten::add_", [(0, "rw"), (2, "r")]),
        ("aten::add_", [(1, "rw"), (3, "r")]),
        ("aten::sqrt", [(2, "r"), (4, "w")]),
        ("aten::sqrt", [(3, "r"), (5, "w")]),
    ]
    assert found[0].key != found[1].key  # the sizes differ
    assert [x.operands[0].length for x in found] == [32, 16, 32, 16]


def test_foreach_copy_overwrites(observe, launches):
    found = one(observe, launches, lambda a, b: torch._foreach_copy_([a], [b]), small(8), small(8))
    assert modes(found[0]) == [(0, "w"), (1, "r")]


def test_fused_optimizer(observe, launches):
    def make_step():
        model = torch.nn.Linear(8, 4)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return optimizer.step

    found = [x for x in launches(observe(make_step, 2), 2) if "fused" in x.name]
    assert len(found) == 2
    assert sorted(x.mode for x in found[0].operands) == ["r", "r", "rw", "rw", "rw"]


def test_convolution_backward_is_split(observe, launches):
    def make_step():
        layer = torch.nn.Conv2d(3, 8, 3)
        image = torch.zeros(2, 3, 8, 8, requires_grad=True)
        return lambda: layer(image).sum().backward()

    found = launches(observe(make_step))
    forward = next(x for x in found if x.name == "aten::convolution")
    parts = {x.name.rpartition("_")[2]: x for x in found if "convolution_backward" in x.name}
    assert list(parts) == ["input", "weight", "bias"]
    assert [len(x.operands) for x in parts.values()] == [3, 3, 2]
    assert parts["input"].flops == parts["weight"].flops == forward.flops > 0
    assert parts["bias"].flops == 0


def test_convolution_backward_without_the_image_gradient(observe, launches):
    def make_step():
        layer = torch.nn.Conv2d(3, 8, 3, bias=False)
        image = torch.zeros(2, 3, 8, 8)
        return lambda: layer(image).sum().backward()

    (found,) = [x for x in launches(observe(make_step)) if "convolution_backward" in x.name]
    assert found.name == "aten::convolution_backward_weight"
    assert found.flops > 0


def test_embedding_and_its_dense_backward(observe, launches):
    def make_step():
        table = torch.nn.Embedding(1000, 16)
        chosen = torch.zeros(4, 5, dtype=torch.int64)
        return lambda: table(chosen).sum().backward()

    found = {x.name: x for x in launches(observe(make_step))}
    lookup = found["aten::embedding"]
    assert modes(lookup)[:2] == [(0, "r"), (1, "r")]
    assert [x.touches for x in lookup.operands] == [20, 0, 0]
    assert lookup.operands[0].length == 1000 * 16 * 4
    assert lookup.operands[0].traffic == 20 * 16 * 4
    names = list(found)
    assert names.index("aten::zero_") + 1 == names.index("aten::embedding_dense_backward")
    scatter = found["aten::embedding_dense_backward"]
    assert scatter.operands[-1].mode == "rw"
    assert scatter.operands[-1].touches == 20
    assert found["aten::zero_"].operands[0].mode == "w"


@pytest.mark.parametrize("sparse", [False, True])
def test_embedding_bag(observe, launches, sparse):
    def make_step():
        table = torch.nn.EmbeddingBag(1000, 16, mode="sum", sparse=sparse)
        optimizer = torch.optim.SGD(table.parameters(), foreach=False)
        chosen, offsets = torch.zeros(20, dtype=torch.int64), torch.arange(0, 20, 4)

        def step():
            optimizer.zero_grad()
            table(chosen, offsets).sum().backward()
            optimizer.step()

        return step

    tracer = observe(make_step, 3)
    found = launches(tracer, 3)
    lookup = next(x for x in found if x.name == "aten::_embedding_bag")
    assert lookup.operands[0].touches == 20
    update = next(x for x in found if x.name == "aten::add_" and x.operands[0].storage == 0)
    assert update.operands[0].mode == "rw"
    if sparse:
        assert update.operands[0].touches == 20
        values = 20 * 16 * 4
        merged = next(x for x in found if x.name == "aten::coalesce")
        assert [x.length for x in merged.operands] == [20 * 8, values, values]
        assert tracer.kinds[merged.operands[-1].storage] == "workspace"
    else:
        assert update.operands[0].touches == 0
        names = [x.name for x in found]
        scatter = names.index("aten::_embedding_bag_backward")
        assert names[scatter - 1] == "aten::zero_"
        assert found[scatter].operands[-1].touches == 20


def test_sparse_update_without_rows(observe, launches):
    def make_step():
        table = torch.nn.EmbeddingBag(100, 4, mode="sum", sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), foreach=False)
        none, offsets = torch.zeros(0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)

        def step():
            table(none, offsets).sum().backward()
            optimizer.step()

        return step

    assert all(x.name != "aten::coalesce" for x in launches(observe(make_step)))


@pytest.mark.parametrize(
    ("operator", "tensors", "touches"),
    [
        (lambda a, i: a.index_select(0, i), [small(100, 4), ids(7)], 7),
        (lambda a, i: a[i], [small(100, 4), ids(7)], 7),
        (lambda a, i: a[:, i], [small(100, 4), ids(3)], 0),
        (lambda a, i: a.gather(1, i), [small(100, 4), ids(100, 2)], 200),
        (lambda a, i: a[i > 0], [small(100), small(100)], None),
        (lambda a, i: torch.nn.functional.nll_loss(a, i), [small(100, 4), ids(100)], 100),
    ],
)
def test_lookups(observe, launches, operator, tensors, touches):
    if touches is None:  # the number of results depends on values
        with pytest.raises(Exception, match="nonzero"):
            one(observe, launches, operator, *tensors)
        return
    found = one(observe, launches, operator, *tensors)
    assert found[0].operands[0].touches == touches


def test_copies_between_host_and_device(observe, launches):
    def make_step():
        return lambda: torch.zeros(8, device="cpu").to("cuda").cpu()

    tracer = observe(make_step)
    there, back = launches(tracer)
    assert (there.name, there.bus, modes(there)) == ("memcpy HtoD", "in", [(0, "w")])
    assert (back.name, back.bus, modes(back)) == ("memcpy DtoH", "out", [(0, "r")])
    assert tracer.kinds == {0: "input"}


def test_copy_into_a_tensor_from_the_host(observe, launches):
    def make_step():
        kept, data = torch.zeros(8), torch.zeros(8, device="cpu")
        return lambda: kept.copy_(data)

    (launch,) = launches(observe(make_step))
    assert (launch.name, modes(launch)) == ("memcpy HtoD", [(0, "w")])


def test_change_of_type_stays_on_the_device(observe, launches):
    (launch,) = one(observe, launches, lambda a: a.half(), small(8))
    assert (launch.name, launch.bus, launch.dtype) == ("aten::_to_copy", "", "fp16")


def test_types(observe, launches):
    kinds = [torch.float32, torch.bfloat16, torch.float64, torch.int32]
    found = [one(observe, launches, torch.neg, small(8, dtype=x))[0].dtype for x in kinds]
    assert found == ["fp32", "fp16", "other", "other"]


def test_floats_are_not_part_of_the_key(observe, launches):
    def keys(value):
        return [x.key for x in one(observe, launches, lambda a: a * value, small(8))]

    assert keys(0.5) == keys(0.25)
    assert keys(2) != keys(3)


def test_storages_are_freed_at_once(observe):
    def make_step():
        def step():
            a = torch.zeros(8)
            b = a.view(2, 4)[1]  # keeps the storage
            del a
            torch.zeros(4)
            del b
            torch.zeros(2)

        return step

    (*_, last) = [x for x in observe(make_step).log if isinstance(x, Step | Alloc | Free)]
    assert isinstance(last, Step)
    events = [x for x in observe(make_step).log if isinstance(x, Alloc | Free)]
    assert events == [
        Alloc(0, 32),
        Alloc(1, 16),
        Free(1),
        Free(0),
        Alloc(2, 8),
        Free(2),
    ]


def test_empty_tensors_are_not_storages(observe):
    tracer = observe(lambda: lambda: torch.zeros(0))
    assert not any(isinstance(x, Alloc) for x in tracer.log)


def test_what_happens_after_closing_is_ignored(observe):
    tracer = observe(lambda: lambda: None)
    events = len(tracer.log)
    tracer._freed(0)
    assert len(tracer.log) == events


def make_gpt2(**optimizer):
    def make_step():
        model = GPT2(CONFIGS["tiny"]).train()
        adamw = torch.optim.AdamW(model.parameters(), **optimizer)
        ids = torch.randint(0, 512, (2, 64))
        attend = torch.ones(2, 64, dtype=torch.int64)

        def step():
            loss, _ = model(ids, attend, ids)
            loss.backward()
            adamw.step()
            adamw.zero_grad(set_to_none=False)

        return step

    return make_step


def closure(function, *names):
    cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    return [cells[name] for name in names]


def live_bytes(tracer, granule=1):
    """The live bytes after each event, every storage rounded up to a granule."""
    sizes, live = {}, 0
    for event in tracer.log:
        if isinstance(event, Alloc):
            sizes[event.storage] = math.ceil(event.bytes / granule) * granule
            live += sizes[event.storage]
        elif isinstance(event, Free):
            live -= sizes.pop(event.storage)
        yield event, live


def test_what_is_live_after_a_step(observe):
    """Parameters, gradients and two moments each, buffers and the inputs; nothing else."""
    tracer = observe(make_gpt2(foreach=False), 3)
    ends = [live for event, live in live_bytes(tracer) if isinstance(event, Step)]
    config = CONFIGS["tiny"]
    d = config.width
    block = (d * 3 * d + 3 * d) + (d * d + d) + (4 * d * d + 4 * d) + (4 * d * d + d) + 4 * d
    parameters = config.vocabulary * d + config.positions * d + config.layers * block + 2 * d
    buffers = config.layers * (config.positions**2 + 4)
    inputs = 2 * 64 * 8 * 2
    assert ends[0] == 4 * parameters + buffers + inputs
    assert ends[1:] == [4 * parameters * 4 + buffers + inputs] * 3


def test_kinds(observe):
    tracer = observe(make_gpt2(foreach=False), 2)
    config = CONFIGS["tiny"]
    tensors = 2 + config.layers * 12 + 2
    kinds = list(tracer.kinds.values())
    assert kinds.count("parameter") == tensors
    assert kinds.count("optimizer") == 2 * tensors
    assert kinds.count("gradient") == tensors


def test_peak_is_that_of_pytorchs_own_tracker(observe):
    from torch.distributed._tools.mem_tracker import MemTracker

    from deepum.record.fake import fake_device

    tracer = observe(make_gpt2(foreach=False), 2)
    with fake_device() as device:
        step = make_gpt2(foreach=False)()
        model, adamw = (x.cell_contents for x in closure(step, "model", "adamw"))
        tracker = MemTracker()
        tracker.track_external(model, adamw, *model.buffers())
        with tracker:
            step()
            tracker.reset_mod_stats()
            step()
        peak = tracker.get_tracker_snapshot("peak")
    theirs = next(x for d, x in peak.items() if d.type == device)["Total"]
    assert theirs == max(live for _, live in live_bytes(tracer, 512))  # it counts blocks of 512


def test_flops_are_those_of_pytorchs_own_counter(observe, launches):
    from torch.utils.flop_counter import FlopCounterMode

    from deepum.record.fake import fake_device

    tracer = observe(make_gpt2(foreach=False))
    with fake_device():
        step = make_gpt2(foreach=False)()
        counter = FlopCounterMode(display=False)
        with counter:
            step()
    assert sum(x.flops for x in launches(tracer)) == counter.get_total_flops() > 0


@pytest.mark.parametrize("threads", [False, True])
def test_the_stream_repeats_with_and_without_autograd_threads(observe, launches, threads, request):
    if threads and "DEEPUM_FRESH" not in os.environ:
        # Where a test has trained before, autograd's threads have begun, and know of no GPU.
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", request.node.nodeid],
            env={**os.environ, "DEEPUM_FRESH": "1"},
            capture_output=True,
            text=True,
            check=False,
            cwd=request.config.rootpath,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
        assert "1 passed" in done.stdout
        return

    def make_step():
        step = make_gpt2(foreach=False)()

        def with_threads():
            with torch.autograd.set_multithreading_enabled(threads):
                step()

        return with_threads

    tracer = observe(make_step, 3)
    streams = [[(x.name, x.key) for x in launches(tracer, n)] for n in (2, 3)]
    assert streams[0] == streams[1]
    plain = observe(make_gpt2(foreach=False), 2)
    assert streams[0] == [(x.name, x.key) for x in launches(plain, 2)]


def test_traffic_of_a_launch(observe, launches):
    (launch,) = one(observe, launches, lambda a, b: a.add_(b), small(8), small(8))
    assert isinstance(launch, Launch)
    assert launch.traffic == 32 * 3


@pytest.mark.parametrize("mask", ["none", "bool", "float"])
def test_attention_is_fused(observe, launches, mask):
    def make_step():
        heads = torch.zeros(2, 4, 64, 32, requires_grad=True)
        masks = {"none": None, "bool": torch.ones(64, 64) > 0, "float": torch.zeros(64, 64)}
        attention = torch.nn.functional.scaled_dot_product_attention

        def step():
            attention(heads, heads, heads, masks[mask], 0.1, mask == "none").sum().backward()

        return step

    tracer = observe(make_step)
    names = [x.name for x in launches(tracer)]
    assert "aten::_scaled_dot_product_efficient_attention" in names
    assert "aten::_scaled_dot_product_efficient_attention_backward" in names
    assert not any("softmax" in x for x in names)


@pytest.mark.parametrize("case", ["grouped", "three dimensions", "host"])
def test_attention_that_is_not_fused(observe, launches, case):
    def make_step():
        many = torch.zeros(2, 4, 8, 16, device="cpu" if case == "host" else None)
        few = many[:, :2]
        attention = torch.nn.functional.scaled_dot_product_attention
        if case == "grouped":
            return lambda: attention(many, few, few, enable_gqa=True)
        if case == "host":
            return lambda: attention(many, many, many)
        return lambda: attention(many[0], many[0], many[0])

    names = [x.name for x in launches(observe(make_step))]
    assert not any("efficient" in x for x in names)
    assert bool(names) == (case != "host")


def test_products_in_tf32(observe, launches):
    def kinds():
        def make_step():
            layer, x = torch.nn.Conv2d(3, 8, 3), torch.zeros(2, 3, 8, 8)
            return lambda: (layer(x), x.view(6, 64) @ x.view(64, 6), x + x)

        return {x.name: x.dtype for x in launches(observe(make_step))}

    before = kinds()
    assert (before["aten::mm"], before["aten::add"]) == ("fp32", "fp32")
    assert before["aten::convolution"] == ("tf32" if torch.backends.cudnn.allow_tf32 else "fp32")
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert kinds()["aten::mm"] == "tf32"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_autocast(observe, launches):
    def make_step():
        layer, x = torch.nn.Linear(8, 8), torch.zeros(4, 8)

        def step():
            with torch.autocast("cuda", dtype=torch.bfloat16):
                layer(x).sum().backward()

        return step

    found = {x.name: x.dtype for x in launches(observe(make_step))}
    assert found["aten::addmm"] == "fp16"

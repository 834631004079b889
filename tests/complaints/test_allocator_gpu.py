# SPDX-License-Identifier: Apache-2.0
"""What people report of PyTorch's pluggable allocators and memory pools, with a session, on a GPU.

Each test names the report that it answers.
"""

import pytest
from tests.on_gpu import run

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


def test_more_is_allocated_than_the_limit() -> None:
    """Reviewers of unified memory asked what memory_allocated means when it exceeds the device.

    https://github.com/pytorch/pytorch/pull/106200
    """
    run("""
    with session(limit="256MiB") as s:
        tensors = [torch.full((16 * MIB,), float(k), device="cuda") for k in range(16)]
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() >= 1024 * MIB
        stats = s.stats
        assert stats["managed_bytes"] >= 1024 * MIB
        assert stats["budget_blocks"] == 128
        assert stats["resident_blocks"] <= 128 + 32
        for k, tensor in enumerate(tensors):
            assert bool((tensor == k).all()), k
    """)


def test_a_convolutional_network_with_cudnn_benchmark() -> None:
    """cudnn.benchmark failed: "CUDAPluggableAllocator does not yet support cacheInfo".

    https://github.com/pytorch/pytorch/issues/98481
    """
    run("""
    torch.backends.cudnn.benchmark = True

    def train():
        model = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
        ).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        images = torch.randn(32, 3, 128, 128, generator=torch.Generator().manual_seed(1)).cuda()
        labels = torch.arange(32).cuda() % 10
        losses = []
        for _ in range(4):
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().cpu())
        return losses + bits(model)

    stats = same_as_native(train, limit="256MiB")
    assert stats["launches"] > 0
    """)


def test_every_question_about_memory_has_an_answer() -> None:
    """max_memory_allocated and others raised with a pluggable allocator.

    https://github.com/pytorch/pytorch/issues/133281
    """
    run("""
    with session() as s:
        keep = torch.ones(8 * MIB, device="cuda")
        cuda = torch.cuda
        cuda.reset_peak_memory_stats()
        cuda.reset_accumulated_memory_stats()
        more = torch.ones(8 * MIB, device="cuda")
        assert cuda.memory_allocated() >= 64 * MIB
        assert cuda.max_memory_allocated() >= cuda.memory_allocated()
        assert cuda.memory_reserved() >= cuda.memory_allocated()
        assert cuda.max_memory_reserved() >= cuda.memory_reserved()
        assert cuda.memory_stats()["allocation.all.current"] >= 2
        assert cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"] > 0
        assert "Allocated memory" in cuda.memory_summary()
        assert sum(part["total_size"] for part in cuda.memory_snapshot()) >= 64 * MIB
        cuda.memory._record_memory_history(max_entries=1000)
        del more
        assert cuda.memory._snapshot()["segments"]
        cuda.memory._record_memory_history(enabled=None)
        assert cuda.get_allocator_backend() == "native"
        free, total = cuda.mem_get_info()
        assert 0 < free < total
        address = cuda.caching_allocator_alloc(4 * MIB)
        cuda.caching_allocator_delete(address)
        cuda.empty_cache()
        assert bool((keep == 1).all())
    """)


def test_empty_cache_gives_managed_memory_back() -> None:
    """empty_cache did nothing for a pluggable allocator in a MemPool.

    https://github.com/pytorch/pytorch/issues/145168
    """
    run("""
    with session() as s:
        tensors = [torch.ones(16 * MIB, device="cuda") for _ in range(8)]
        kept = torch.full((1000,), 3.0, device="cuda")
        assert s.stats["managed_bytes"] >= 512 * MIB
        del tensors
        torch.cuda.empty_cache()
        assert s.stats["managed_bytes"] <= 32 * MIB, s.stats["managed_bytes"]
        assert bool((kept == 3).all())
        again = torch.ones(16 * MIB, device="cuda")
        assert s.stats["managed_bytes"] >= 64 * MIB  # what comes now is managed too
        assert bool((again == 1).all())
        del again, kept
        torch.cuda.empty_cache()
        assert s.stats["managed_bytes"] == 0, s.stats["managed_bytes"]
    """)


@pytest.mark.parametrize("collect", [False, True])
def test_a_tensor_outlives_its_session(collect: bool) -> None:
    """Memory of a pool was freed with cudaFree, or through a closure that was gone: a crash.

    https://github.com/pytorch/pytorch/issues/146431
    https://github.com/pytorch/pytorch/pull/188170
    """
    run(f"""
    torch.zeros(1, device="cuda")
    with session() as s:
        pass
    before = free_bytes()
    with session() as s:
        tensor = torch.full((64 * MIB,), 5.0, device="cuda")
    assert bool((tensor == 5).all())
    if {collect}:
        gc.collect()
        torch.cuda.empty_cache()
        assert s.stats["managed_bytes"] >= 256 * MIB
    del tensor
    gc.collect()
    torch.cuda.empty_cache()
    assert s.stats["managed_bytes"] == 0, s.stats["managed_bytes"]
    assert comes_back(before)
    assert bool((torch.ones(1000, device="cuda") == 1).all())
    """)


@pytest.mark.parametrize("inner", ["session", "pool"])
def test_a_session_and_a_users_pool_in_each_other(inner: str) -> None:
    """A pool nested in another got no allocations.

    https://github.com/pytorch/pytorch/issues/161193
    """
    run(f"""
    pool = torch.cuda.MemPool()

    def filled(value):
        return torch.full((16 * MIB,), value, device="cuda")

    if {inner!r} == "session":
        with torch.cuda.use_mem_pool(pool):
            first = filled(1.0)
            with session() as s:
                second = filled(2.0)
                assert s.stats["managed_bytes"] >= 64 * MIB
            third = filled(3.0)
    else:
        with session() as s:
            first = filled(1.0)
            managed = s.stats["managed_bytes"]
            with torch.cuda.use_mem_pool(pool):
                second = filled(2.0)
            assert s.stats["managed_bytes"] == managed  # the program's own pool is its own
            third = filled(3.0)
            assert s.stats["managed_bytes"] > managed
    for value, tensor in enumerate((first, second, third), 1):
        assert bool((tensor == value).all()), value
    """)


def test_a_session_on_one_device_and_work_on_another() -> None:
    """A MemPool ended the process when the current device was not its own.

    https://github.com/pytorch/pytorch/issues/149802
    """
    run(
        """
    with session() as s:
        here = torch.full((16 * MIB,), 1.0, device="cuda:0")
        managed = s.stats["managed_bytes"]
        with torch.cuda.device(1):
            there = torch.full((16 * MIB,), 2.0, device="cuda:1")
            torch.cuda.empty_cache()
            assert s.stats["managed_bytes"] == managed  # only device 0 is managed
            total = (there + here.to("cuda:1")).sum()
        assert total.item() == 3 * 16 * MIB
        torch.cuda.set_device(1)
    assert bool((here == 1).all()) and bool((there == 2).all())
    """,
        devices=2,
    )


def test_patterns_of_temporaries() -> None:
    """Temporary and nested pools failed in several ways.

    https://github.com/pytorch/pytorch/issues/167745
    """
    run("""
    def one(n=8):
        return torch.randn(n, device="cuda")

    with session():                               # the tensor dies after the session
        x = one()
    del x
    x = one()                                     # one before, dead after
    with session():
        pass
    del x
    with session():                               # dead within
        x = one()
        del x
    x = one()                                     # replaced within
    with session():
        x = one()
    with session():                               # and replaced again, of an earlier session
        x = one()
    del x
    with session():                               # pools of the program's own that die within
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            x = one()
        del x
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
                y = one(8 * MIB)
            x = one(8 * MIB)
        del x, y
        gc.collect()
        torch.cuda.empty_cache()
        z = one()
    assert bool(torch.isfinite(z).all())
    gc.collect()
    torch.cuda.empty_cache()
    """)


def test_threads_allocate_where_we_say() -> None:
    """A pool covered every thread or only the calling one, and backward's fell out.

    https://github.com/pytorch/pytorch/issues/152861
    """
    run("""
    from torch.utils.data import DataLoader, TensorDataset

    with session() as s:
        model, x = network(4), data()
        model(x).square().mean().backward()       # gradients are allocated in autograd's thread
        made = []
        thread = threading.Thread(target=lambda: made.append(torch.ones(16 * MIB, device="cuda")))
        thread.start()
        thread.join()
        pinned = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=16, pin_memory=True)
        batches = [batch.cuda(non_blocking=True) for (batch,) in pinned]
        torch.cuda.synchronize()
        # All that PyTorch has reserved is managed but for what was there before the session.
        assert torch.cuda.memory_reserved() - s.stats["managed_bytes"] <= 2 * 20 * MIB
        assert torch.cat(batches).cpu().equal(torch.arange(64.0))
        assert bool((made[0] == 1).all())
    """)


@pytest.mark.parametrize("how", ["open", "closed", "raises", "graph"])
def test_the_interpreter_ends_with_everything_alive(how: str) -> None:
    """At exit the allocator died before its pool: a pure virtual call.

    https://github.com/vllm-project/vllm/pull/46050
    """
    program = f"""
    s = session()
    tensor = torch.ones(64 * MIB, device="cuda")
    model, x = network(4), data()
    loss = model(x).square().mean()               # a graph of autograd's that is alive
    if {how!r} == "graph":
        graph = torch.cuda.CUDAGraph()
        static = torch.zeros(1000, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            static += 1
        graph.replay()
    if {how!r} == "closed":
        s.close()
    torch.cuda.synchronize()
    print("reached the end", flush=True)
    if {how!r} == "raises":
        sys.excepthook = lambda *_: os.write(2, b"raised")
        sys.exit(0)
    """
    assert "reached the end" in run(program)


def test_sizes_that_change_in_every_step() -> None:
    """A managed pool grew without end over 500 frames of varying size.

    https://github.com/rapidsai/rmm/issues/1421
    """
    run(
        """
    import random
    numbers = random.Random(1)
    with session(limit="256MiB") as s:
        most = []
        for step_ in range(10_000):
            a = torch.empty(numbers.randrange(1, 4 * MIB), device="cuda")
            b = torch.empty(numbers.randrange(1, 4 * MIB), device="cuda")
            b.fill_(1)
            if step_ % 100 == 0:
                most.append(s.stats["managed_bytes"])
            del a, b
        assert max(most[50:]) <= max(most[:50]) + 64 * MIB, most
        assert max(most) <= 512 * MIB, most
    """,
        timeout=280,
    )

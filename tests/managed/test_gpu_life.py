# SPDX-License-Identifier: Apache-2.0
"""Beginnings and ends of sessions on a GPU: nested, failing, forked, compiled, captured.

Each program runs in a process of its own. What a processor can show of this is in test_life.py,
test_fork.py and test_pool.py.
"""

import pytest
from tests.on_gpu import run

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


def test_nested_sessions() -> None:
    run("""
    with session() as outer:
        x = torch.full((16 * MIB,), 1.0, device="cuda")
        try:
            session("noop")
        except deepum.DeepUMError as error:
            assert "close it first" in str(error) and "\\n" not in str(error)
        else:
            raise AssertionError("a second session was let in")
        y = x + 1
        assert outer.stats["policy"] == "chained"
        assert bool((y == 2).all())
    with session("arguments") as after:
        assert bool((x + y == 3).all())
        assert after.stats["launches"] > 0
    """)


def test_an_exception_inside() -> None:
    run("""
    class Stop(Exception):
        pass

    before = None
    for _ in range(3):
        try:
            with session() as s:
                model, x = network(), data()
                model(x).square().mean().backward()
                raise Stop
        except Stop:
            pass
        del model, x
        gc.collect()
        torch.cuda.empty_cache()
        assert s.stats["managed_bytes"] == 0
        before = free_bytes() if before is None else before
        assert comes_back(before)
    assert not [t for t in threading.enumerate() if t.name.startswith("deepum")]
    """)


def test_out_of_memory_says_which_limit_it_was_and_the_program_goes_on() -> None:
    run("""
    try:
        with session(limit="256MiB", options={"host_limit": "256MiB"}) as s:
            kept = []
            while True:
                kept.append(torch.ones(16 * MIB, device="cuda"))
    except torch.OutOfMemoryError as error:
        assert any("raise host_limit" in note for note in error.__notes__), error.__notes__
    assert all(bool((tensor == 1).all()) for tensor in kept)
    assert 4 <= len(kept) <= 8
    """)


def test_memory_is_given_back() -> None:
    run("""
    with session():                               # what libraries keep for good
        model, x = network(2), data()
        model(x).sum().backward()
    del model, x
    gc.collect()
    torch.cuda.empty_cache()
    before = free_bytes()
    for policy in ("chained", "noop", "arguments", "single-level"):
        with session(policy) as s:
            model, x = network(), data()
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(2):
                step(model, optimizer, x)
            assert s.stats["managed_bytes"] >= 600 * MIB
        del model, x, optimizer
        gc.collect()
        torch.cuda.empty_cache()
        assert s.stats["managed_bytes"] == 0, policy
        assert comes_back(before), policy
    """)


def test_a_fork() -> None:
    run("""
    with session() as s:
        model, x = network(4), data()
        optimizer = torch.optim.AdamW(model.parameters())
        step(model, optimizer, x)
        for how in ("quietly", "as a program"):
            pid = os.fork()
            if pid == 0:
                del model, x, optimizer, s
                gc.collect()
                os._exit(7) if how == "quietly" else sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7, how
        step(model, optimizer, x)
        assert s.stats["failure"] == ""
    """)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader(start: str) -> None:
    run(f"""
    from torch.utils.data import DataLoader, TensorDataset

    with session() as s:
        model = network(8)
        optimizer = torch.optim.AdamW(model.parameters())
        loader = DataLoader(
            TensorDataset(torch.arange(256.0).repeat(2048, 1).T.contiguous()), batch_size=32,
            num_workers=2, pin_memory=True, multiprocessing_context={start!r},
        )
        seen = []
        for (batch,) in loader:
            seen.append(batch[:, 0].clone())
            step(model, optimizer, batch.cuda(non_blocking=True) / 256)
        assert torch.cat(seen).equal(torch.arange(256.0))
        assert s.stats["failure"] == ""
    """)


def test_memory_that_another_stream_used_comes_back() -> None:
    """`record_stream` puts a free off; while a session is open, until the cache is emptied."""
    run("""
    side = torch.cuda.Stream()
    with session(limit="256MiB") as s:
        for k in range(40):
            x = torch.ones(16 * MIB, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x.sum()
            x.record_stream(side)
            side.synchronize()     # item() waits for the current stream alone
            assert y.item() == 16 * MIB
            del x
            if k % 8 == 7:
                torch.cuda.empty_cache()
            assert s.stats["managed_bytes"] <= 640 * MIB, (k, s.stats["managed_bytes"])
        torch.cuda.empty_cache()
        assert s.stats["managed_bytes"] <= 64 * MIB, s.stats["managed_bytes"]
    """)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_training(mode: str) -> None:
    pytest.importorskip("triton", reason="torch.compile on a GPU needs triton")
    run(
        f"""
    def train():
        torch._dynamo.reset()
        model, x = network(6), data()
        compiled = torch.compile(model, mode={mode!r})
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(6):
            loss = compiled(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().cpu())
        return losses + bits(model)

    same_as_native(train, limit="256MiB")
    """,
        timeout=280,
    )


@pytest.mark.parametrize("fits", [True, False])
def test_a_captured_graph(fits: bool) -> None:
    """Its own memory is PyTorch's private pool, the weights that it reads are managed."""
    run(f"""
    def train():
        model, x = network(8), data()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):             # as PyTorch's documentation warms up
            for _ in range(3):
                optimizer.zero_grad(set_to_none=True)
                model(x).square().mean().backward()
                optimizer.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
        losses = []
        for _ in range(5):
            graph.replay()
            losses.append(loss.detach().cpu())
            torch.empty(8 * MIB, device="cuda").fill_(1)  # what is freed must not be the graph's
        return losses + bits(model)

    same_as_native(train, limit={"1GiB" if fits else "128MiB"!r})
    """)

# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show of recording, counting and giving memory back."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

MIB = 1 << 20


def step(model, optimizer, batch) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def training():
    """Return a model of some 270 MiB with its states, its optimizer and a batch."""
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(2048, 2048, device="cuda") for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    # One kernel for each tensor: none needs more than the budgets here.
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    return model, optimizer, torch.randn(256, 2048, device="cuda")


def test_a_recorded_run_simulates(tmp_path: Path) -> None:
    import torch

    import deepum

    path = tmp_path / "live.trace"
    with deepum.Session("arguments", memory_limit="160MiB", backend="managed", trace=path) as live:
        parts = training()
        for _ in range(8):
            step(*parts)
        torch.cuda.synchronize()
        assert live.stats["steps"] >= 7
    trace = deepum.Trace.load(path)
    assert trace.loop_from >= 0
    measured = [row["time_s"] for row in trace.meta["live"]]
    run = deepum.simulate(path, "h200-pcie5", "arguments", memory="160MiB", iterations=4)
    assert 0 < run.iterations[-1].compute_s < 1.2 * max(measured)


def test_emptying_the_cache_gives_managed_memory_back() -> None:
    import torch

    import deepum

    with deepum.Session("arguments", memory_limit="256MiB", backend="managed") as live:
        others = live.stats["managed_bytes"]  # of what ran before in this process
        kept = torch.ones(4 * MIB, device="cuda")
        gone = [torch.ones(8 * MIB, device="cuda") for _ in range(4)]
        torch.cuda.synchronize()
        before = live.stats["managed_bytes"]
        del gone
        torch.cuda.empty_cache()
        assert live.stats["managed_bytes"] <= before - 4 * 32 * MIB
        assert float(kept.sum()) == 4 * MIB
        again = torch.ones(8 * MIB, device="cuda")
        assert float(again.sum()) == 8 * MIB
        del kept
        torch.cuda.empty_cache()  # what was left in the pool before
        torch.cuda.synchronize()
        assert live.stats["managed_bytes"] <= others + 64 * MIB


def test_counters_agree_with_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    import deepum
    from deepum.cuda import faults
    from deepum.errors import BackendError

    counted = {}
    for source in ("uvm-tools", "cupti"):
        if source == "cupti":

            def closed(feed):
                raise BackendError("closed for this test")

            monkeypatch.setattr(faults, "FaultSource", closed)
        with deepum.Session("noop", memory_limit="160MiB", backend="managed") as live:
            if live.stats["fault_source"] != source:
                pytest.skip(f"faults come from {live.stats['fault_source']} here, not {source}")
            before = live.stats["fault_records"]
            parts = training()
            for _ in range(4):
                step(*parts)
            torch.cuda.synchronize()
            counted[source] = live.stats["fault_records"] - before
        del parts
    # Of what the queue tells one by one, CUPTI makes a record for many.
    assert 0 < counted["cupti"] <= counted["uvm-tools"]

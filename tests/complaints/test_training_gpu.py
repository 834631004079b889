# SPDX-License-Identifier: Apache-2.0
"""What people report of CPU offload and paged optimizers, with a session, on a GPU.

Every result is compared bit by bit with that of the same program without a session. The network and
its AdamW states take about twice the memory limit.
"""

import pytest
from tests.on_gpu import run

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


def test_gradients_are_clipped() -> None:
    """FSDP2's CPU offload did not work with clip_grad_norm_: no backend for the cpu device.

    https://github.com/pytorch/pytorch/issues/148532
    """
    run("""
    def train():
        model, x = network(), data()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return [step(model, optimizer, x, clip=0.01) for _ in range(4)] + bits(model)

    stats = same_as_native(train)
    assert stats["bytes_out"] > 0, "nothing had to move: the test shows nothing"
    """)


@pytest.mark.parametrize(
    "optimizer", ["AdamW(p, fused=True)", "AdamW(p, foreach=False)", "RMSprop(p)"]
)
def test_optimizers_of_every_kind(optimizer: str) -> None:
    """Offloading crashed when a fused optimizer made its states.

    https://github.com/pytorch/pytorch/pull/192441
    """
    run(f"""
    def train():
        model, x = network(), data()
        p = list(model.parameters())
        optimizer = torch.optim.{optimizer}
        return [step(model, optimizer, x) for _ in range(3)] + bits(model)

    same_as_native(train)
    """)


def test_gradients_are_right_with_moves_that_lag() -> None:
    """Offloaded activations gave silently wrong gradients: a copy raced with its use.

    https://github.com/pytorch/torchtune/issues/1867
    """
    run(
        """
    def train():
        model, x = network(), data()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(6):
            loss = model(x).square().mean()
            loss.backward()
            losses += [p.grad.detach().cpu() for p in model.parameters()] + [loss.detach().cpu()]
            optimizer.step()
            optimizer.zero_grad()
        return losses + bits(model)

    stats = same_as_native(train, limit="256MiB", options={"delay_us": 2000})
    assert stats["bytes_out"] > 0
    """,
        timeout=280,
    )


def test_a_forward_pass_without_a_backward_one() -> None:
    """The tracker of offloaded activations was not cleared when no backward pass followed.

    https://github.com/pytorch/torchtune/issues/2709
    """
    run("""
    class Stop(Exception):
        pass

    def train():
        model, x = network(), data()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = [step(model, optimizer, x)]
        with torch.no_grad():
            losses.append(model(x).mean().cpu())
        model(x)                                  # its graph dies unused
        def stop(*_):
            raise Stop
        hook = model[6].register_forward_hook(stop)
        try:
            model(x)
        except Stop:
            pass
        hook.remove()
        return losses + [step(model, optimizer, x) for _ in range(2)] + bits(model)

    same_as_native(train)
    """)


def test_schedulers_groups_and_frozen_parameters() -> None:
    """An offloading optimizer was no Optimizer for schedulers, and frozen parameters crashed it.

    https://github.com/pytorch/ao/issues/1209
    https://github.com/pytorch/ao/issues/959
    """
    run("""
    def train():
        model, x = network(), data()
        for parameter in model[0].parameters():
            parameter.requires_grad_(False)
        optimizer = torch.optim.AdamW([
            {"params": model[1:6].parameters(), "lr": 1e-3},
            {"params": [*model[0].parameters(), *model[6:].parameters()], "weight_decay": 0.0},
        ], lr=1e-4)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-3, 1e-4], total_steps=8)
        losses = []
        for k in range(5):
            losses.append(step(model, optimizer, x))
            scheduler.step()
            if k == 2:
                for parameter in model[0].parameters():
                    parameter.requires_grad_(True)
        return losses + bits(model) + [torch.tensor(scheduler.get_last_lr())]

    same_as_native(train)
    """)


def test_states_are_saved_loaded_copied_and_pickled(tmp_path) -> None:
    """Paged optimizer states broke load_state_dict and resuming.

    https://github.com/bitsandbytes-foundation/bitsandbytes/issues/782
    """
    run(f"""
    import pickle
    path = {str(tmp_path / "checkpoint.pt")!r}

    def train():
        model, x = network(8), data()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(2):
            step(model, optimizer, x)
        torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}, path)
        twin = copy.deepcopy(model)
        other = pickle.loads(pickle.dumps(twin))
        assert equal(bits(model), bits(other))
        expected = [step(model, optimizer, x) for _ in range(2)]

        stored = torch.load(path, map_location="cpu")
        resumed = network(8)
        resumed.load_state_dict(stored["model"])
        again = torch.optim.AdamW(resumed.parameters(), lr=1e-3)
        again.load_state_dict(stored["optimizer"])
        got = [step(resumed, again, x) for _ in range(2)]
        assert equal(expected, got), "what was resumed goes on differently"
        assert equal(bits(model), bits(resumed))
        return got + bits(resumed) + bits(twin)

    same_as_native(train, limit="512MiB")
    """)


def test_memory_that_is_not_managed_is_left_alone() -> None:
    """A prefetch of memory that is not managed became a hard error.

    https://github.com/rapidsai/rmm/issues/1648
    """
    run("""
    plain = torch.full((16 * MIB,), 2.0, device="cuda")       # of before: ordinary memory
    pinned = torch.ones(16 * MIB).pin_memory()
    with session(limit="256MiB") as s:
        managed = [torch.full((16 * MIB,), float(k), device="cuda") for k in range(8)]
        for k, tensor in enumerate(managed):
            tensor.mul_(plain).add_(pinned.to("cuda", non_blocking=True))
        torch.cuda.synchronize()
        for k, tensor in enumerate(managed):
            assert bool((tensor == 2 * k + 1).all()), k
        assert s.stats["move_errors"] == 0, s.stats["last_move_error"]
    torch.cuda.synchronize()                                  # no error was left behind
    assert bool((plain == 2).all())
    """)

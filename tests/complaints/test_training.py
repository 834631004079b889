# SPDX-License-Identifier: Apache-2.0
"""What people report of CPU offload and paged optimizers, as far as a processor can show it.

A module's weights lie in a session's memory, twice as large as its limit, and are moved by real
page faults. Every result is compared bit by bit with that of the same program in ordinary memory.
"""

import contextlib
import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import deepum
from deepum.backends import live

pytestmark = [pytest.mark.torch, pytest.mark.slow]

LAYERS, WIDTH, LIMIT = 10, 1024, "20MiB"  # weights of 40 MiB


@pytest.fixture(autouse=True)
def needs_uffd() -> None:
    if reason := live.unavailable("uffd"):
        pytest.skip(f"no uffd here: {reason}")


def network(session: deepum.Session | None) -> Any:
    """Return a small network, its weights in the session's memory."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers)
    return model if session is None else moved(model, session)


def moved(model: Any, session: deepum.Session) -> Any:
    for parameter in model.parameters():
        place = session.tensor(parameter.shape, parameter.dtype)
        place.copy_(parameter.detach())
        parameter.data = place
    return model


def step(model: Any, optimizer: Any, clip: float | None = None) -> Any:
    import torch
    from torch import nn

    x = torch.linspace(-1, 1, 8 * WIDTH).view(8, WIDTH)
    loss = model(x).square().mean()
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach().clone()


def bits(model: Any) -> list[Any]:
    return [value.detach().clone() for value in model.state_dict().values()]


def same_in_a_session(train: Callable[[deepum.Session | None], list[Any]]) -> dict[str, Any]:
    """Train in ordinary memory and in a session's; the results must be equal."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        ordinary = train(None)
        session = stack.enter_context(deepum.Session("chained", memory_limit=LIMIT, backend="uffd"))
        limited = train(session)
        assert len(ordinary) == len(limited) > 0
        assert all(torch.equal(a, b) for a, b in zip(ordinary, limited, strict=True))
        stats = session.stats
    assert stats["faults"] > 0, "everything fitted: the test shows nothing"
    return stats


def test_gradients_are_clipped() -> None:
    """FSDP2's CPU offload did not work with clip_grad_norm_: no backend for the cpu device.

    https://github.com/pytorch/pytorch/issues/148532
    """

    def train(session: deepum.Session | None) -> list[Any]:
        import torch

        model = network(session)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return [step(model, optimizer, clip=1e-3) for _ in range(2)] + bits(model)

    same_in_a_session(train)


def test_schedulers_groups_and_frozen_parameters() -> None:
    """An offloading optimizer was no Optimizer for schedulers, and frozen parameters crashed it.

    https://github.com/pytorch/ao/issues/1209
    https://github.com/pytorch/ao/issues/959
    """

    def train(session: deepum.Session | None) -> list[Any]:
        import torch

        model = network(session)
        for parameter in model[0].parameters():
            parameter.requires_grad_(False)
        groups = [
            {"params": list(model[:8].parameters()), "lr": 1e-3},
            {"params": list(model[8:].parameters()), "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=1e-4)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        losses = []
        for _ in range(3):
            losses.append(step(model, optimizer))
            scheduler.step()
        return [*losses, *bits(model), torch.tensor(scheduler.get_last_lr())]

    same_in_a_session(train)


def test_states_are_saved_loaded_copied_and_pickled() -> None:
    """Paged optimizer states broke load_state_dict and resuming.

    https://github.com/bitsandbytes-foundation/bitsandbytes/issues/782
    """

    def train(session: deepum.Session | None) -> list[Any]:
        import torch

        model = network(session)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        step(model, optimizer)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        twin, other = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        expected = [step(model, optimizer) for _ in range(2)]

        file.seek(0)
        stored = torch.load(file)
        resumed = network(session)
        resumed.load_state_dict(stored["model"])
        again = torch.optim.AdamW(resumed.parameters(), lr=1e-3)
        again.load_state_dict(stored["optimizer"])
        got = [step(resumed, again) for _ in range(2)]
        assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
        return got + bits(resumed) + bits(twin) + bits(other)

    same_in_a_session(train)

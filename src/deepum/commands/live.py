# SPDX-License-Identifier: Apache-2.0
"""``deepum demo --live``: a small network really trains, in half the memory it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from deepum.commands.options import write_json
from deepum.errors import BackendError

if TYPE_CHECKING:
    from deepum.backends.training import Shape, Trained

POLICIES = ("noop", "single-level", "chained")


def show(
    backend: str,
    steps: int,
    layers: int,
    batch: int,
    json_file: str | None,
    *,
    where_possible: bool = False,
) -> None:
    """Train, and print what happened.

    Parameters
    ----------
    backend
        ``"uffd"``, ``"kmod"``, or ``"auto"`` for the better of the two that works here.
    steps, layers, batch
        How much to train.
    json_file
        Where to write the results, if anywhere.
    where_possible
        Whether to say in one line why it is not possible, and leave it at that.
    """
    from deepum.backends import live
    from deepum.backends.training import Shape

    if backend == "auto":
        reasons = [(name, live.unavailable(name)) for name in live.NAMES]
        found = next((name for name, reason in reasons if not reason), None)
        if found is None:
            reason = "; ".join(f"{name}: {reason}" for name, reason in reasons)
            if where_possible:
                click.echo(f"No live demo here: {reason}")
                return
            raise BackendError(f"no backend for a live demo works here: {reason}")
        backend = found
    try:
        live.choose(backend)
        results, shape = run(backend, steps, Shape(layers=layers, batch=batch))
    except BackendError as error:
        if not where_possible:
            raise
        click.echo(f"No live demo here: {error}")
        return
    if not write_json(results, json_file):
        from deepum.report.live import live_table, sentences
        from deepum.report.tables import console

        out = console()
        out.print(
            f"A network of {shape.layers} layers trains in this process ({results['library']}): "
            f"{results['backend']}, the processor stands in for the GPU.",
            style="bold",
        )
        out.print(live_table(results))
        for sentence in sentences(results):
            out.print(f"• {sentence}")
    if not results["bitwise_equal"]:
        raise BackendError("the weights differ from those of ordinary memory: please report this")


def run(backend: str, steps: int, shape: Shape) -> tuple[dict[str, Any], Shape]:
    """Train in ordinary memory, then under each policy; return what ``--json`` writes."""
    from deepum.backends.memory import require
    from deepum.backends.training import library, same, train
    from deepum.commands.runs import training_progress
    from deepum.session import Session

    lib = library()
    # The arrays once in ordinary memory, then their store and the frames; a little more for all.
    require(round(2.2 * 3 * shape.layers * shape.width**2 * 4), "the network")
    runs: list[dict[str, Any]] = []
    with training_progress((1 + len(POLICIES)) * steps) as done:
        plain = train(shape, steps, lib, each=lambda step: done("ordinary memory"))
        budget = plain.peak_bytes // 2
        equal = True
        for policy in POLICIES:

            def tell(step: int, policy: str = policy) -> None:
                done(policy)

            with Session(policy, memory_limit=budget, backend=backend) as session:
                trained = train(shape, steps, lib, session, each=tell)
                budget_blocks = session.stats["budget_blocks"]
            equal = equal and same(plain, trained)
            runs.append({"policy": policy, "iterations": _iterations(trained)})
    return {
        "backend": backend,
        "library": lib,
        "peak_bytes": plain.peak_bytes,
        "budget_bytes": budget_blocks << 21,
        "bitwise_equal": equal,
        "ordinary_time_s": plain.times_s,
        "losses": plain.losses,
        "runs": runs,
    }, shape


def _iterations(trained: Trained) -> list[dict[str, Any]]:
    return [
        {"time_s": seconds, **counts}
        for seconds, counts in zip(trained.times_s, trained.counts, strict=True)
    ]

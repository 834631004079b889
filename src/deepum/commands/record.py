# SPDX-License-Identifier: Apache-2.0
"""``deepum record``: make a trace from a PyTorch training step, without a GPU."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from deepum.commands.options import (
    check_output,
    json_option,
    machine_option,
    parse_batch,
    write_json,
    wrote,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deepum.trace import Trace


@click.command(short_help="Make a trace from a PyTorch training step.")
@click.argument("model", required=False)
@click.option("--script", metavar="FILE:FUNCTION", help="Record your own, e.g. train.py:make_step.")
@click.option(
    "--batch",
    "-b",
    callback=parse_batch,
    metavar="B",
    help="Samples in a step; 96k is 98,304. Given to FUNCTION if it takes an argument.",
)
@machine_option
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Record exactly so many steps of a script.  [default: until they repeat]",
)
@click.option(
    "--output", "-o", metavar="FILE", help="The trace.  [default: named by what is recorded]"
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@json_option("what was recorded")
def command(
    model: str | None,
    script: str | None,
    batch: int | None,
    machine: str,
    steps: int | None,
    output: str | None,
    force: bool,
    json_file: str | None,
) -> None:
    r"""Record the training step of a built-in MODEL or of your own script.

    The step runs once under fake tensors: it needs PyTorch (the CPU build will do), no GPU, and
    little memory. Kernel times are estimates for the machine.

    \b
    deepum record gpt2-xl --batch 3 -o gpt2.trace
    deepum record --script train.py:make_step -o mine.trace

    FUNCTION builds the model and returns a callable that runs one training step.
    """
    if (model is None) == (script is None):
        raise click.UsageError(
            f"name a MODEL or a --script, one of them. Models: {', '.join(_models())}"
        )
    if model is not None and batch is None:
        raise click.UsageError("a MODEL needs --batch")
    if model is not None and steps is not None:
        raise click.UsageError("--steps is for scripts; a MODEL's steps all repeat")
    target = output or f"{_name(model, script, batch)}.trace"
    check_output(target, new=not force, trace=True)
    check_output(json_file)

    from pathlib import Path

    from deepum.record.recorder import record_model, record_script
    from deepum.report.summary import detail

    with _progress() as tell:
        trace: Trace
        if model is not None:
            assert batch is not None
            trace = record_model(model, batch, machine, progress=tell)
        else:
            assert script is not None
            trace = record_script(script, batch, machine, progress=tell, steps=steps)
    trace.save(target)
    details = detail(trace, Path(target).stat().st_size)
    note = trace.meta.get("iterations_note")
    if note:
        click.echo(f"note: {note}", err=True)
    if not write_json({"file": target, **details.to_json()}, json_file):
        from deepum.report.numbers import count, seconds, size

        facts = details.summary
        click.echo(
            f"{facts.name}: {count(facts.kernels_per_step)} kernels a step, "
            f"{seconds(facts.compute_s)} of compute on {facts.machine}, "
            f"peak {size(facts.peak_bytes)}, {facts.iterations} steps recorded"
        )
    wrote(target)


def _models() -> list[str]:
    from deepum.record.models import MODELS

    return list(MODELS)


def _name(model: str | None, script: str | None, batch: int | None) -> str:
    if script is not None:
        from deepum.record.script import locate

        return locate(script).name
    from deepum.record.recorder import batch_label

    assert batch is not None
    return f"{model}-b{batch_label(batch)}"


@contextmanager
def _progress() -> Iterator[Callable[[str], None] | None]:
    from deepum.report.tables import console

    shown = console(stderr=True)
    if not shown.is_terminal:
        yield None
        return
    with shown.status("loading PyTorch") as status:
        yield lambda text: status.update(f"recording: {text}")

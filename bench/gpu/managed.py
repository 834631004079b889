# SPDX-License-Identifier: Apache-2.0
"""Train under managed memory and measure: native, noop, single-level, chained, arguments.

    python bench/gpu/managed.py --models gpt2-xl,bert-large --ratios 1,1.5,2,3 --json FILE
    python bench/gpu/managed.py --models gpt2-xl --ratios 2 --modes chained --ablation --json FILE
    python bench/gpu/managed.py --models gpt2-xl --plan

Each point runs in a process of its own with a timeout of its own, and the file is written after
each; `--resume` goes on where an interrupted run stopped. The memory limit is the model's native
peak divided by the ratio (at 1.0x: what the allocator reserved, and 5 %). `bound_s` comes from
the working sets of a recorded run: bound.py has the formula.

`noop` is plain managed memory, evicting the least recently migrated blocks in reaction to faults.
It is treated more kindly than the driver treats a full card: a fault does not wait for an
eviction, only the launches after it do.
"""

from __future__ import annotations

import json
from pathlib import Path

import child
import click
import matrix
import plan


@click.command()
@click.option("--models", default="gpt2-small", show_default=True)
@click.option("--ratios", default="1,1.5,2,3", show_default=True)
@click.option("--modes", default=",".join(plan.MODES), show_default=True)
@click.option("--ablation", is_flag=True, help="Also chained with fewer mechanisms.")
@click.option("--steps", default=5, show_default=True)
@click.option("--warmup", default=4, show_default=True)
@click.option("--batch", type=int, help="Batch size instead of the model's own.")
@click.option("--timeout", default=240.0, show_default=True, help="Seconds for one point.")
@click.option("--option", "options", multiple=True, metavar="NAME=JSON")
@click.option("--repeat", is_flag=True, help="Run native twice: is it reproducible at all?")
@click.option("--no-bound", is_flag=True, help="Do not record working sets for bound_s.")
@click.option("--resume", is_flag=True, help="Keep the points that the file has already.")
@click.option(
    "--traces", type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder for a trace of each session.",
)  # fmt: skip
@click.option("--plan", "only_plan", is_flag=True, help="Print the points and run none.")
@click.option("--json", "output", type=click.Path(path_type=Path))
def main(
    models, ratios, modes, ablation, steps, warmup, batch, timeout, options, repeat, no_bound,
    resume, traces, only_plan, output,
):  # fmt: skip
    """Measure every mode of every model at every ratio."""
    try:
        wanted = plan.points(
            models.split(","), [float(r) for r in ratios.split(",")], modes.split(","),
            batch=batch, ablation=ablation,
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if only_plan:
        click.echo(plan.table(wanted, steps + warmup, timeout))
        return
    from head import head

    how = matrix.How(
        __file__, steps, warmup, timeout, repeat=repeat, bound=not no_bound, traces=traces,
        options={k: json.loads(v) for k, v in (o.split("=", 1) for o in options)},
    )  # fmt: skip
    matrix.run(wanted, child.Results(output, head(), resume=resume, key=matrix.KEY), how)


if __name__ == "__main__":
    if child.is_child():
        from measure import run_point

        child.answer(run_point(child.task()))
    main()

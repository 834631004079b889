# SPDX-License-Identifier: Apache-2.0
"""Train in the memory mode vmm, and beside it what people use when a model does not fit.

    python bench/gpu/vmm.py --models gpt2-xl,bert-large,resnet152,llama-1b,dlrm --json FILE
    python bench/gpu/vmm.py --models gpt2-xl --ratios 2 --modes vmm,save-on-cpu --json FILE
    python bench/gpu/vmm.py --models gpt2-xl --plan
    python bench/gpu/vmm.py --life --models gpt2-small --json FILE

Points run as in managed.py, whose words on processes, limits and bounds hold here. `vmm` and
`managed-chained` have the policy `chained`. The alternatives (alternatives.py) are ordinary PyTorch
held to the same limit by `torch.cuda.set_per_process_memory_fraction`; nobody counts their bytes,
so these are null, and so is `bitwise_equal` where a `note` says that the numerics differ, or where
native ran for another number of steps: `losses_equal` compares those that both have. A point
without enough memory has `out_of_memory`, one that could not run has `error`.

`--life` trains a model for many steps with changing batch sizes, accumulated and clipped gradients
and an evaluation pass now and then, natively and in `vmm` at each ratio: life.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import child
import click
import life
import matrix
import plan


@click.command()
@click.option("--models", default="gpt2-small", show_default=True)
@click.option("--ratios", default="1,1.25,1.5,2,4", show_default=True)
@click.option("--modes", default=",".join(plan.VMM_MODES), show_default=True)
@click.option("--steps", type=int, help="Measured steps; of --life, all.  [default: 5, 1000]")
@click.option("--warmup", default=4, show_default=True)
@click.option("--batch", type=int, help="Batch size instead of the model's own.")
@click.option("--timeout", default=240.0, show_default=True, help="Seconds for one point.")
@click.option("--option", "options", multiple=True, metavar="NAME=JSON", help="Of sessions in vmm.")
@click.option("--repeat", is_flag=True, help="Run native twice: is it reproducible at all?")
@click.option("--no-bound", is_flag=True, help="Do not record working sets for bound_s.")
@click.option("--life", "for_life", is_flag=True, help="Many steps of changing shape instead.")
@click.option("--resume", is_flag=True, help="Keep the points that the file has already.")
@click.option(
    "--traces", type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder for a trace of each session.",
)  # fmt: skip
@click.option("--plan", "only_plan", is_flag=True, help="Print the points and run none.")
@click.option("--json", "output", type=click.Path(path_type=Path))
def main(
    models, ratios, modes, steps, warmup, batch, timeout, options, repeat, no_bound, for_life,
    resume, traces, only_plan, output,
):  # fmt: skip
    """Measure every mode of every model at every ratio; with --life, status 1 if one is wrong."""
    steps = steps or (life.STEPS if for_life else 5)
    names = ["native", "vmm"] if for_life else modes.split(",")
    try:
        wanted = plan.points(
            models.split(","), [float(r) for r in ratios.split(",")], names,
            batch=batch, known=plan.VMM_MODES,
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if only_plan:
        click.echo(plan.table(wanted, steps + (0 if for_life else warmup), timeout))
        return
    from head import head

    how = matrix.How(
        __file__, steps, warmup, timeout, repeat=repeat, bound=not no_bound, traces=traces,
        whole_rows=True,
        options={k: json.loads(v) for k, v in (o.split("=", 1) for o in options)},
        options_for=("vmm",),
    )  # fmt: skip
    results = child.Results(output, head(), resume=resume, key=matrix.KEY)
    if for_life:
        raise SystemExit(0 if life.run(wanted, results, how) else 1)
    matrix.run(wanted, results, how)


if __name__ == "__main__":
    if child.is_child():
        from measure import run_point

        task = child.task()
        child.answer(life.live(task) if task.get("life") else run_point(task))
    main()

# SPDX-License-Identifier: Apache-2.0
"""``deepum run``: a script that knows nothing of deepum, with its memory managed."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepum.commands.options import check_output, json_option, write_json
from deepum.errors import DeepUMError
from deepum.units import format_bytes

if TYPE_CHECKING:
    from types import TracebackType


@click.command(
    short_help="Run a training script with more memory than the GPU has.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--policy", default="chained", show_default=True, help="Who decides what moves.")
@click.option("--depth", default=32, show_default=True, help="Prefetch distance, kernels.")
@click.option("--memory-limit", metavar="SIZE", help="GPU memory to use; what is free by default.")
@click.option(
    "--memory",
    type=click.Choice(["managed", "vmm", "auto"]),
    default="managed",
    show_default=True,
    help="Memory that faults, that is remapped, or what deepum doctor --coverage allows.",
)
@click.option("--host-limit", metavar="SIZE", help="Host memory that evicted blocks may take.")
@click.option(
    "--oversubscribe", is_flag=True, help="Allow more managed memory than the card has free."
)
@click.option("--trace", metavar="FILE", help="Record some steps, for deepum simulate and info.")
@click.option(
    "--trace-steps", type=click.IntRange(min=1), default=4, show_default=True, help="How many."
)
@click.option("--progress", is_flag=True, help="Show how it goes, on standard error.")
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module.")
@click.option("--quiet", is_flag=True, help="Say nothing at the end.")
@json_option("what happened")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    policy: str,
    depth: int,
    memory_limit: str | None,
    memory: str,
    host_limit: str | None,
    oversubscribe: bool,
    trace: str | None,
    trace_steps: int,
    progress: bool,
    module: bool,
    quiet: bool,
    json_file: str | None,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT with its ARGUMENTS; all that PyTorch allocates on the GPU is deepum's.

    The script sees its own arguments, standard input and exit status as if it ran alone.
    """
    check_output(json_file)
    check_output(trace, trace=True)
    if not module and not Path(script).is_file():
        raise DeepUMError(f"{script}: no such script")

    from deepum.backends.live import choose_memory, open_gpu

    options: dict[str, Any] = {} if host_limit is None else {"host_limit": host_limit}
    backend = open_gpu(
        choose_memory(memory, None if module else Path(script)),
        policy,
        depth=depth,
        memory_limit=memory_limit,
        options=options,
        oversubscribe=oversubscribe,
        trace=trace,
        trace_steps=trace_steps,
        progress=progress,
    )
    backend.start()
    status = _run(script, module, arguments, backend)
    backend.stop()
    stats = backend.stats
    if not write_json(stats, json_file) and not quiet:
        click.echo(summary(stats), err=True)
    sys.stdout.flush()
    if status == -signal.SIGINT:  # as the interpreter itself ends
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(status)


def _run(script: str, module: bool, arguments: tuple[str, ...], backend: Any) -> int:
    """Run the script; return its exit status."""
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path.cwd()) if module else str(Path(script).resolve().parent)
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        if backend.refused:
            error.add_note(f"deepum: {backend.refused}")
        error.__traceback__ = _own(error.__traceback__)
        traceback.print_exception(error)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _own(frames: TracebackType | None) -> TracebackType | None:
    # What the script would show: neither this file's frames nor runpy's.
    while frames is not None and frames.tb_frame.f_code.co_filename in (
        __file__,
        runpy.__file__,
        "<frozen runpy>",
    ):
        frames = frames.tb_next
    return frames


def summary(stats: dict[str, Any]) -> str:
    """Return a line about what a session did."""
    managed = format_bytes(stats["managed_bytes"])
    moved = (
        f"{format_bytes(stats['bytes_in'])} in, {format_bytes(stats['bytes_out'])} out, "
        f"{format_bytes(stats['bytes_dropped'])} dropped"
    )
    text = (
        f"deepum: {stats['launches']:,} launches, {managed} managed, "
        f"{stats['fault_records']:,} faults, {moved}"
    )
    if stats["failure"]:
        text += f"; the engine stopped early: {stats['failure']}"
    return text

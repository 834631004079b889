# SPDX-License-Identifier: Apache-2.0
"""``deepum doctor``: what works on this machine, and what to do about the rest."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from deepum.commands.options import check_output, json_option, write_json
from deepum.errors import DeepUMError


@click.command(
    short_help="What works here, and what to do about the rest.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@json_option("the checks, or what was found of SCRIPT,")
@click.option(
    "--coverage", is_flag=True, help="Find out whether SCRIPT's launches name all its memory."
)
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    help="With --coverage: launches between two parkings.",
)
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    json_file: str | None,
    coverage: bool,
    every: int,
    module: bool,
    script: str | None,
    arguments: tuple[str, ...],
) -> None:
    """Check what works here and say what to do about what does not.

    The exit status is 0 if the simulator works; a missing GPU is no error.

    With --coverage, SCRIPT is run with its ARGUMENTS, slowly, while all GPU memory is sent to the
    host every few launches: if no kernel ever touches what its launch does not name, the exit
    status is 0, and the finding is kept for sessions that choose their memory mode themselves.
    """
    check_output(json_file)
    if coverage != (script is not None):
        raise click.UsageError(
            "--coverage needs a SCRIPT" if coverage else "a SCRIPT is for --coverage"
        )
    if script is not None:
        _cover(ctx, json_file, script, module, arguments, every)
        return
    from deepum.doctor import BROKEN, run_checks

    checks = run_checks()
    works = all(check.state != BROKEN for check in checks)
    data = {"simulator": works, "checks": [asdict(check) for check in checks]}
    if not write_json(data, json_file):
        from deepum.report.tables import checks_table, console

        out = console()
        out.print(checks_table(data["checks"]))  # type: ignore[arg-type]
        out.print("The simulator works." if works else "The simulator does not work.")
    if not works:
        ctx.exit(1)


def _cover(
    ctx: click.Context,
    json_file: str | None,
    script: str,
    module: bool,
    arguments: tuple[str, ...],
    every: int,
) -> None:
    """Run a script under observation; say and keep what was found."""
    from deepum import proofs
    from deepum.commands.run import _run
    from deepum.doctor.coverage import measure

    path = _file_of(script, module)
    verdict = measure(lambda backend: _run(script, module, arguments, backend), every=every)
    # A run that failed says nothing of the script, unless it saw an access.
    if verdict.covered or verdict.faults_outside:
        proofs.keep(path, arguments, verdict.as_dict())
    if not write_json(verdict.as_dict(), json_file):
        click.echo(f"deepum: {verdict.line()}", err=True)
    sys.stdout.flush()
    ctx.exit(0 if verdict.covered else 1)


def _file_of(script: str, module: bool) -> Path:
    if module:
        from importlib.util import find_spec

        sys.path.insert(0, str(Path.cwd()))
        try:
            spec = find_spec(script)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = find_spec(f"{script}.__main__")
        except ModuleNotFoundError:
            spec = None
        finally:
            sys.path.pop(0)
        if spec is None or spec.origin is None:
            raise DeepUMError(f"{script}: no such module")
        return Path(spec.origin)
    if not Path(script).is_file():
        raise DeepUMError(f"{script}: no such script")
    return Path(script)

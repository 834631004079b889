# SPDX-License-Identifier: Apache-2.0
"""``deepum doctor``: what works on this machine, and what to do about the rest."""

from __future__ import annotations

from dataclasses import asdict

import click

from deepum.commands.options import check_output, json_option, write_json


@click.command(short_help="What works here, and what to do about the rest.")
@json_option("the checks")
@click.pass_context
def command(ctx: click.Context, json_file: str | None) -> None:
    """Check what works here and say what to do about what does not.

    The exit status is 0 if the simulator works; a missing GPU is no error.
    """
    check_output(json_file)
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

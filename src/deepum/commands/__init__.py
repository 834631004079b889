# SPDX-License-Identifier: Apache-2.0
"""The command line: a click group, one module for each verb.

A verb's module is imported when the verb is used (or listed), and what it needs is imported when
it runs, so that ``deepum --help`` answers at once.
"""

from __future__ import annotations

import difflib
import os
from importlib import import_module
from typing import Any, cast

import click

VERBS = (
    "demo", "run", "simulate", "info", "record", "policies",
    "reproduce", "bench", "doctor", "kmod",
)  # fmt: skip
"""In the order in which help lists them."""

ERROR_STATUS = 2
INTERRUPTED_STATUS = 130


class VerbGroup(click.Group):
    """Finds verbs by module name and turns errors into one line and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a verb and return its command."""
        if cmd_name not in VERBS:
            return None
        return cast("click.Command", import_module(f"deepum.commands.{cmd_name}").command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; guess what was meant when there is none of that name."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, 1)
            hint = f"did you mean {near[0]}?" if near else f"verbs: {', '.join(VERBS)}"
            ctx.fail(f"no verb {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. What a user can put right is told in one line, without a traceback."""
        from deepum.errors import DeepUMError

        try:
            return super().invoke(ctx)
        except (DeepUMError, OSError) as error:
            # A closed pipe (`deepum info | head`) is not an error: click ends quietly.
            if ctx.params.get("traceback") or isinstance(error, BrokenPipeError):
                raise
            click.echo(f"error: {one_line(error)}", err=True)
            ctx.exit(ERROR_STATUS)
        except (KeyboardInterrupt, click.Abort):
            if ctx.params.get("traceback"):
                raise
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED_STATUS)


def one_line(error: BaseException) -> str:
    """Return what went wrong in one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{os.fspath(error.filename)}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        import deepum

        click.echo(f"deepum {deepum.__version__}")
        ctx.exit()


@click.group(
    cls=VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Try first: deepum demo",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.option(
    "--traceback",
    is_flag=True,
    envvar="DEEPUM_TRACEBACK",
    help="Show where an error comes from. [env: DEEPUM_TRACEBACK=1]",
)
def cli(traceback: bool) -> None:
    """Use more GPU memory than the card has, at close to the speed of having it.

    All but `run` work everywhere, without a GPU.
    """


__all__ = ["ERROR_STATUS", "INTERRUPTED_STATUS", "VERBS", "cli", "one_line"]

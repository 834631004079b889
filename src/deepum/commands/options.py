# SPDX-License-Identifier: Apache-2.0
"""Options and argument types that several verbs share."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepum.errors import DeepUMError

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.decorators import FC

DEFAULT_MACHINE = "v100-pcie3-32g"
DEFAULT_POLICIES = "noop,single-level,chained,oracle"
STDOUT = "-"


def parse_size(
    ctx: click.Context | None,
    param: click.Parameter | None,
    value: str | None,
) -> int | None:
    """Return bytes from 32GiB, 24.5 GB or 512M (= MiB); a click callback."""
    if value is None:
        return None
    from deepum.units import parse_bytes

    try:
        return parse_bytes(value)
    except DeepUMError as error:
        raise click.BadParameter(str(error)) from None


def parse_batch(
    ctx: click.Context | None,
    param: click.Parameter | None,
    value: str | None,
) -> int | None:
    """Return a batch size; k means 1024, so 96k is 98,304. A click callback."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+)([kK]?)", value.strip())
    if found is None or int(found[1]) == 0:
        raise click.BadParameter(f"{value!r} is not a batch size; write it like 3 or 96k")
    return int(found[1]) * (1024 if found[2] else 1)


def parse_names(
    ctx: click.Context | None,
    param: click.Parameter | None,
    value: str,
) -> tuple[str, ...]:
    """Return the names of a list with commas, doubles left out; a click callback."""
    return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))


def parse_features(
    ctx: click.Context | None, param: click.Parameter | None, value: str
) -> tuple[str, ...]:
    """Return the features to switch off; a click callback."""
    from deepum.backends.sim import MECHANISMS

    names = parse_names(ctx, param, value)
    for name in names:
        if name not in MECHANISMS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(MECHANISMS)}")
    return names


def parse_memory_modes(
    ctx: click.Context | None, param: click.Parameter | None, value: str
) -> tuple[str, ...]:
    """Return the memory modes to simulate; a click callback."""
    from deepum.backends.sim import MEMORY_MODES

    names = parse_names(ctx, param, value)
    for name in names:
        if name not in MEMORY_MODES:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(MEMORY_MODES)}")
    if not names:
        raise click.BadParameter("names no memory mode")
    return names


def parse_settings(
    ctx: click.Context | None,
    param: click.Parameter | None,
    values: tuple[str, ...],
) -> dict[str, Any]:
    """Return options given as key=value; a click callback.

    A value is a number, true, false, none, or a text.
    """
    settings: dict[str, Any] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{value!r} is not of the form key=value")
        settings[key.strip()] = _plain(text.strip())
    return settings


def _plain(text: str) -> Any:
    known = {"true": True, "false": False, "none": None}
    if text.lower() in known:
        return known[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def json_option(what: str) -> Callable[[FC], FC]:
    """Add ``--json [FILE]``."""
    return click.option(
        "--json",
        "json_file",
        metavar="[FILE]",
        is_flag=False,
        flag_value=STDOUT,
        help=f"Write {what} as JSON to FILE; to standard output, instead of tables, when FILE is "
        "- or left out.",
    )


machine_option = click.option(
    "--machine",
    "-m",
    default=DEFAULT_MACHINE,
    show_default=True,
    metavar="NAME|FILE",
    help="Hardware profile: a shipped one or a TOML file.",
)


def check_output(
    name: str | None, *, suffixes: tuple[str, ...] = (), new: bool = False, trace: bool = False
) -> None:
    """Make sure that a file can be written before the work that fills it begins.

    Parameters
    ----------
    suffixes
        What the name must end in; anything if empty.
    new
        Refuse to overwrite a file.
    trace
        The file will be a trace. Nothing else may overwrite a trace.

    Raises
    ------
    DeepUMError
        The folder does not exist, the name is a folder's, or the file is a trace.
    """
    if name is None or name == STDOUT:
        return
    path = Path(name)
    if suffixes and path.suffix.lower() not in suffixes:
        raise DeepUMError(f"{name}: the name must end in {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise DeepUMError(f"{name}: there is no folder {path.parent}")
    if path.is_dir():
        raise DeepUMError(f"{name} is a folder")
    if new and path.exists():
        raise DeepUMError(f"{name} exists; --force overwrites it")
    # `--json x.trace` takes the trace for the file to write.
    if not trace and path.is_file() and zipfile.is_zipfile(path):
        raise DeepUMError(f"{name} is a trace and would be overwritten; write --json -")


def write_json(data: Any, name: str | None) -> bool:
    """Write JSON if a file was named; return True when it went to standard output."""
    if name is None:
        return False
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    if name == STDOUT:
        click.echo(text)
        return True
    Path(name).write_text(text + "\n", encoding="utf-8")
    wrote(name)
    return False


def wrote(name: str | Path) -> None:
    """Say on standard error that a file has been written."""
    click.echo(f"wrote {name}", err=True)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    click.echo(f"warning: {' '.join(text.split())}", err=True)

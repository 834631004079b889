# SPDX-License-Identifier: Apache-2.0
"""``deepum policies``: which policies can be named, here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from deepum.commands.options import check_output, json_option, write_json


@click.command(short_help="Policies, their options, and where they come from.")
@json_option("the policies")
def command(json_file: str | None) -> None:
    """List the policies with their options and where each comes from."""
    check_output(json_file)

    from deepum.backends.sim import ENGINE_OPTIONS
    from deepum.policy import available

    policies = available()
    data: dict[str, Any] = {
        "policies": [asdict(info) for info in policies.values()],
        "engine_options": ENGINE_OPTIONS,
    }
    if not write_json(data, json_file):
        from deepum.report.tables import console, policies_table

        out = console()
        out.print(policies_table(policies))
        shared = ", ".join(f"{name}={value}" for name, value in ENGINE_OPTIONS.items())
        out.print(f"Options of the engine, under every policy: {shared}")

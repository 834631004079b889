# SPDX-License-Identifier: Apache-2.0
"""The ``deepum`` command, also ``python -m deepum``."""

from __future__ import annotations

from deepum.commands import cli


def main() -> None:
    """Run the command line; never returns."""
    cli(prog_name="deepum")


if __name__ == "__main__":
    main()

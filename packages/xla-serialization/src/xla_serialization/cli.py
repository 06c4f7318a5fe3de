"""The command `python -m xla_serialization`."""

from __future__ import annotations

import importlib
import sys

import click

# Each is a module below xla_serialization.commands that holds it, as `command`: only what is called is imported.
COMMANDS = ("inspect", "convert", "verify")


class _Lazy(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        found: click.Command = importlib.import_module(f"xla_serialization.commands.{name}").command
        return found


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="xla-serialization")
def group() -> None:
    """Look at checkpoints, convert them, verify them."""


def main() -> None:
    """Run it and exit; a wrong option or file is one line on stderr and exit code 2."""
    sys.exit(group.main(prog_name="python -m xla_serialization"))

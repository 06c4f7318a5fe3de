"""The command `python -m xla_serialization`."""

from __future__ import annotations

import importlib
import sys

import click

# Each names a module of xla_serialization.commands with a `command`, which is imported only when it is called.
COMMANDS = ("inspect", "convert", "verify")


class _CheckpointCommands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"xla_serialization.commands.{name}").command
        return command


@click.group(cls=_CheckpointCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="xla-serialization")
def group() -> None:
    """Look at checkpoints, convert them, verify them."""


def main() -> None:
    """Run the command and exit; a wrong option or file is one line on stderr and exit code 2."""
    sys.exit(group.main(prog_name="python -m xla_serialization"))

"""The command `xla-debug`."""

from __future__ import annotations

import importlib
import sys

import click

# Subcommand → the module below xla_debug.commands that holds it, as `command`: only what is called is imported.
COMMANDS: dict[str, str] = {
    "run": "run",
    "report": "report",
    "diff": "diff",
    "compare": "compare",
    "watch": "watch",
    "graph": "graph",
    "trace": "trace",
    "operators": "operators",
    "env": "env",
    "settings": "settings",
}


class _Lazy(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        found: click.Command = importlib.import_module(f"xla_debug.commands.{COMMANDS[name]}").command
        return found


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="xla-debug")
def group() -> None:
    """See why a PyTorch program on XLA devices is slow."""


def main() -> None:
    """Run it and exit; a wrong option or file is one line on stderr and exit code 2."""
    sys.exit(group.main(standalone_mode=True))

"""The command `xla-debug`."""

from __future__ import annotations

import importlib
import sys

import click
from click.shell_completion import CompletionItem

# Subcommands with the first line of their help. Each is `command` of the module with its name below xla_debug.commands. A list of commands
# imports none of these modules, since most of them take long to import.
COMMANDS: dict[str, str] = {
    "run": "Run SCRIPT with ARGS, then say where its time went and what to change.",
    "report": "Show a run report.",
    "diff": "Show what got slower between two runs, and by how much.",
    "compare": "Show several runs in one table, beside the first one.",
    "watch": "Show a running job.",
    "plan": "Compile SCRIPT with ARGS for devices that are not here, and say what it needs there.",
    "warm": "Compile what SCRIPT with ARGS records, in threads, and run none of it.",
    "graph": "Print or draw a program.",
    "trace": "Write the last steps of a run as a trace for Perfetto.",
    "operators": "Show the device time of each operator in a profile.",
    "env": "Print versions, devices and settings, and what is wrong with them.",
    "settings": "List the environment variables that the packages read.",
}


class _DebugCommands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"xla_debug.commands.{name}").command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        begun = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return [*begun, *click.Command.shell_complete(self, context, incomplete)]


@click.group(cls=_DebugCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="xla-debug")
def group() -> None:
    """See why a PyTorch program on XLA devices is slow."""


def main() -> None:
    """Run the command and exit; a wrong option or file is one line on stderr and exit code 2."""
    sys.exit(group.main(standalone_mode=True))

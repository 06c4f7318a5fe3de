"""The command's own frame: help, version and completion list what there is without importing what the commands need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from xla_debug.cli import COMMANDS, group
from xla_debug.run_report import files
from xla_debug.run_report.schema import Replica, RunReport

LOADED = """
import sys
from xla_debug.cli import group
try:
    group.main(sys.argv[1:], prog_name="xla-debug")
finally:
    print("loaded:", *sorted({"torch", "jax", "jaxlib", "numpy", "xla_core", "pydantic", "rich"} & set(sys.modules)))
"""


def loaded(*line: str, **variables: str) -> set[str]:
    """The heavy packages that a process of its own has imported after a command."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *line], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    *shown, last = done.stdout.splitlines()
    assert shown and last.startswith("loaded:")
    return set(last.split()[1:])


@pytest.mark.parametrize("line", [["--help"], ["-h"], ["--version"]])
def test_help_and_version_import_nothing_heavy(line: list[str]) -> None:
    assert loaded(*line) == set()


def test_completion_of_commands_imports_nothing_heavy() -> None:
    assert loaded(_XLA_DEBUG_COMPLETE="bash_complete", COMP_WORDS="xla-debug re", COMP_CWORD="1") == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_imports_neither_torch_nor_jax(name: str) -> None:
    assert loaded(name, "--help") <= {"pydantic", "rich"}


def test_reports_are_shown_without_torch_and_jax(
    run_report: Callable[..., RunReport], full: Callable[..., Replica], tmp_path: Path
) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(files.to_json(run_report(full())))
    for line in (["report", str(file)], ["report", "--json", "-", str(file)], ["diff", str(file), str(file)], ["compare", str(file)]):
        assert loaded(*line) == {"pydantic", "rich"}


def test_the_list_of_commands_is_that_of_the_modules() -> None:
    modules = {path.stem for path in Path(import_module("xla_debug.commands").__file__ or "").parent.glob("*.py")}
    assert set(COMMANDS) == modules - {"__init__", "file_io"}
    shown = CliRunner().invoke(group, ["--help"]).stdout
    for name, text in COMMANDS.items():
        command = group.get_command(click.Context(group), name)
        assert command is not None and command.name == name and command.help
        assert text.split()[0] == command.help.split()[0] and f"{name} " in shown and text.split(".")[0][:20] in shown


def test_completion_offers_commands_and_options() -> None:
    context = click.Context(group)
    assert [item.value for item in group.shell_complete(context, "re")] == ["report"]
    assert "--help" in [item.value for item in group.shell_complete(context, "--")]


def test_version_is_that_of_the_distribution() -> None:
    assert metadata.version("xla-debug") in CliRunner().invoke(group, ["--version"]).stdout

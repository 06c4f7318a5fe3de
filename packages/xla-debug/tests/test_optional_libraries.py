"""What is said of a library that is missing."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from xla_debug import optional_libraries
from xla_debug.cli import group


def test_modules_are_found_and_not_imported() -> None:
    assert optional_libraries.is_installed("wsgiref.simple_server") and "wsgiref.simple_server" not in sys.modules
    assert not optional_libraries.is_installed("no_such_package.part") and not optional_libraries.is_installed("no_such_package")


@pytest.mark.parametrize(
    ("library", "options"),
    [(optional_libraries.OPENTELEMETRY, ["--opentelemetry"]), (optional_libraries.TENSORBOARD, ["--tensorboard", "folder"])],
)
def test_the_command_names_the_extra(library: str, options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    done = CliRunner().invoke(group, ["run", *options, __file__])
    extra = options[0].removeprefix("--")
    assert done.exit_code == 2
    assert done.output == f'Error: {options[0]} needs a package that is not installed: pip install "xla-debug[{extra}]"\n'

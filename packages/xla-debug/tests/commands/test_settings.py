"""`xla-debug settings`: every variable of every package, as a table and as the page docs/settings.md, which is never stale."""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import forked_python
import pytest
from click.testing import CliRunner

from xla_core import abi
from xla_core.abi.settings import Setting
from xla_debug.cli import group
from xla_debug.commands.settings import markdown
from xla_debug.settings import SETTINGS, GraphFormat

ROOT = Path(__file__).resolve().parents[4]
GROUP = "xla_core.settings"


def declared() -> dict[str, tuple[Any, ...]]:
    """What the packages of this repository offer, by their pyproject.toml: the same whatever is installed."""
    found = {}
    for file in sorted(ROOT.glob("packages/*/pyproject.toml")):
        offers = tomllib.loads(file.read_text(encoding="utf-8"))["project"].get("entry-points", {}).get(GROUP, {})
        for name, target in offers.items():
            module, _, attribute = target.partition(":")
            found[name] = tuple(getattr(importlib.import_module(module), attribute))
    return found


def test_the_page_is_what_the_table_says() -> None:
    page = ROOT / "docs/settings.md"
    assert page.read_text(encoding="utf-8") == markdown(declared()), "write it again: xla-debug settings --markdown >docs/settings.md"


def test_packages_offer_their_settings_under_their_own_names() -> None:
    found = declared()
    assert {"xla-core", "xla-debug", "xla-distributed"} <= set(found)
    assert found["xla-debug"] == SETTINGS
    for package, rows in found.items():
        names = [setting.name for setting in rows]
        assert len(set(names)) == len(names), package


EXAMPLE = {
    "some-package": (
        Setting("XLA_SOME_FLAG", False, "Does a | b.", bool, "0 or 1"),
        Setting("XLA_SOME_FORMAT", GraphFormat.DOT, "How.", GraphFormat, "text, dot or hlo"),
        Setting("XLA_SOME_SHARE", 0.5, "How much.", float, "a number [from 0 to 1]"),
        Setting("XLA_SOME_TEXT", None, "What.", str, "a text"),
    )
}


def test_defaults_are_shown_as_the_environment_would_spell_them() -> None:
    for rows in declared().values():
        for setting in rows:
            if setting.default is not None:
                cell = next(line for line in markdown({"one": [setting]}).splitlines() if setting.name in line).split(" | ")[1]
                assert setting.parse(cell.strip("`")) == setting.default, setting.name


def test_each_variable_is_a_row() -> None:
    rows = markdown(EXAMPLE).partition("## some-package\n\n")[2].splitlines()
    assert rows == [
        "| Variable | Default | What it does | Must be |",
        "|---|---|---|---|",
        r"| `XLA_SOME_FLAG` | `0` | Does a \| b. | 0 or 1 |",
        "| `XLA_SOME_FORMAT` | `dot` | How. | text, dot or hlo |",
        "| `XLA_SOME_SHARE` | `0.5` | How much. | a number [from 0 to 1] |",
        "| `XLA_SOME_TEXT` | unset | What. | a text |",
    ]


def test_the_command_lists_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi.settings, "installed_settings", lambda: EXAMPLE)
    shown = CliRunner().invoke(group, ["settings"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for text in ("some-package", "XLA_SOME_FLAG", "Does a | b.", "dot", "unset", "a number [from 0 to 1]"):
        assert text in shown.stdout
    page = CliRunner().invoke(group, ["settings", "--markdown"])
    assert (page.exit_code, page.stdout) == (0, markdown(EXAMPLE))


def test_a_distribution_is_found_by_its_entry_point(tmp_path: Path) -> None:
    folder = tmp_path / "some_package-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: some-package\nVersion: 1.0\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\nsome-package = some_settings:ROWS\n", encoding="utf-8")
    (tmp_path / "some_settings.py").write_text(
        'from xla_core.abi.settings import Setting\nROWS = [Setting("XLA_FROM_ELSEWHERE", 3, "Counts.", int, "an integer")]\n',
        encoding="utf-8",
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = forked_python.run(
        [sys.executable, "-m", "xla_debug", "settings", "--markdown"], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "## some-package" in done.stdout
    assert "| `XLA_FROM_ELSEWHERE` | `3` | Counts. | an integer |" in done.stdout

"""The generated pages, docs/reference/ and docs/internals/files.md, are what the packages say now, on any machine."""

from __future__ import annotations

import enum
import importlib.util
import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import forked_python
import pytest

ROOT = Path(__file__).resolve().parents[1]


def script(name: str) -> types.ModuleType:
    """A program of scripts/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


reference = script("reference")


@pytest.mark.parametrize("name", ["reference", "inventory"])
def test_pages_are_fresh_and_public_names_have_docstrings(name: str) -> None:
    done = forked_python.run([sys.executable, str(ROOT / "scripts" / f"{name}.py"), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Colour(enum.Enum):
    """Colours."""

    RED = "red"


class Pair(NamedTuple):
    """Two numbers."""

    left: int
    right: float = 0.5


class Painter:
    """Paints. colour: of what it paints."""

    def __init__(self, colour: Colour = Colour.RED) -> None:
        self.colour = colour

    @property
    def name(self) -> str:
        """Its name."""
        return "painter"

    def paint(self, *walls: str, coats: int = 2) -> int:
        """Walls painted, of type list<str>."""
        return len(walls) * coats

    def silent(self) -> None:
        pass


def paint(first: Any, /, second: Colour = Colour.RED, *, third: Any = object(), key: Any = len) -> Pair:  # noqa: B008
    """Paint *all*. Raises `a<b>`."""
    return Pair(1)


class Made:
    __module__ = "xla_core.made"

    def quiet(self) -> None:
        pass


def page(*values: Any) -> str:
    """The text of a page with these names."""
    entries = tuple(reference.Entry("torch_xla.some", value.__name__, value) for value in values)
    return str(reference.render([reference.Module("torch_xla.some", "Some.", entries)])["torch_xla.some.md"])


def test_signatures_have_no_addresses_and_no_paths() -> None:
    text = page(paint)
    assert "paint(first: Any, /, second: Colour = Colour.RED, *, third: Any = <object>, key: Any = len) -> Pair\n" in text
    assert r"Paint \*all\*. Raises `a<b>`." in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Colour.RED, "Colour.RED"),
        (frozenset("cab"), "frozenset({'a', 'b', 'c'})"),
        (Sequence[Colour] | None, "Sequence[Colour] | None"),
        (object(), "<object>"),
        (1.5, "1.5"),
    ],
)
def test_values_are_the_same_in_every_process(value: Any, text: str) -> None:
    assert reference.shown_value(value) == text


def test_a_long_signature_has_a_line_for_each_parameter() -> None:
    def launch(*, function: Any = None, address_of_the_coordinator: str = "localhost", seconds_to_wait: float = 1.5) -> None:
        """Start."""

    assert "launch(\n    *,\n    function: Any = None,\n    address_of_the_coordinator: str = 'localhost',\n" in page(launch)


def test_classes_show_how_they_are_made_and_their_own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Painter, "__module__", "xla_core.paint")
    text = page(Painter)
    assert "class Painter(colour: Colour = Colour.RED)" in text
    assert "- `name: str`  \n    Its name." in text
    assert "- `paint(*walls: str, coats: int = 2) -> int`  \n    Walls painted, of type list\\<str>." in text


def test_enums_show_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Colour, "__module__", "xla_core.paint")
    assert "- `RED` = `'red'`" in page(Colour)


def test_named_tuples_show_their_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pair, "__module__", "xla_core.paint")
    assert "class Pair(left: int, right: float = 0.5)" in page(Pair)


def test_names_without_docstrings_are_found() -> None:
    entry = reference.Entry("torch_xla.some", "Made", Made)
    assert reference.undocumented([reference.Module("torch_xla.some", "", (entry,))]) == [
        "torch_xla.some",
        "torch_xla.some.Made",
        "torch_xla.some.Made.quiet",
    ]


def test_a_name_of_two_modules_is_described_once() -> None:
    modules = [reference.Module(f"torch_xla.{name}", "Some.", (reference.Entry(f"torch_xla.{name}", "paint", paint),)) for name in "ab"]
    texts = reference.render(modules)
    assert "### `paint`" in texts["torch_xla.a.md"]
    assert "### `paint`" not in texts["torch_xla.b.md"]
    assert "(torch_xla.a.md#torch_xla-a-paint)" in texts["torch_xla.b.md"]


def test_stale_missing_and_superfluous_pages_are_found(tmp_path: Path) -> None:
    texts = {"a.md": "a", "b.md": "b", "c.md": "c"}
    reference.write(tmp_path, texts)
    assert reference.stale(tmp_path, texts) == []
    (tmp_path / "a.md").write_text("other", encoding="utf-8")
    (tmp_path / "b.md").unlink()
    (tmp_path / "old.md").write_text("old", encoding="utf-8")
    assert reference.stale(tmp_path, texts) == ["a.md", "b.md", "old.md"]
    reference.write(tmp_path, texts)
    assert reference.stale(tmp_path, texts) == []


def test_links_inside_the_reference_lead_to_an_entry() -> None:
    places = {file.name: set(re.findall(r'<a id="([^"]+)"', file.read_text(encoding="utf-8"))) for file in reference.FOLDER.glob("*.md")}
    for file in reference.FOLDER.glob("*.md"):
        for page_name, anchor in re.findall(r"\]\(([\w.]*)#([^)]+)\)", file.read_text(encoding="utf-8")):
            assert anchor in places[page_name or file.name], (file.name, anchor)

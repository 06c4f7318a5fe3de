"""Whatever warns that it is deprecated says since when and until when, and docs/deprecations.md lists it."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import deprecations

ROOT = deprecations.ROOT
# Files that may say so in other ways, and why.
OTHERS = {
    "xla_core/base/deprecation.py": "what Deprecation is made of, and functions for the users' own old names",
    "xla_core/engine/tensor/data_dependent.py": "torch's own deprecation of masks of dtype uint8, which goes when torch's goes",
}


def undated(source: str) -> list[int]:
    """Lines that give a warning about deprecation by themselves, and functions documented as deprecated that do not call `.warn()`."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            calls = (ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call))
            if "deprecated:" in (ast.get_docstring(node) or "").lower() and not any(call.endswith(".warn") for call in calls):
                lines.append(node.lineno)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("warn", "warn_once", "warning", "warn_explicit"):
            texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))
            if any("deprecat" in text.lower() for text in texts):
                lines.append(node.lineno)
    return lines


def test_no_deprecation_lacks_a_date() -> None:
    strays = {}
    for file in sorted(ROOT.glob("packages/*/src/**/*.py")):
        name, text = file.as_posix().rpartition("/src/")[2], file.read_text(encoding="utf-8")
        if name not in OTHERS and "deprecat" in text.lower() and (lines := undated(text)):
            strays[name] = lines
    assert strays == {}, "use xla_core.abi.declarations.Deprecation"


@pytest.mark.parametrize(
    "source",
    [
        "warnings.warn('f is deprecated', FutureWarning)",
        "_log.warning(f'{name} is deprecated')",
        "warn_once('f', 'Deprecated since ever')",
        'def f():\n    """Sums. Deprecated: use g."""\n    return g()',
    ],
)
def test_a_warning_without_a_date_is_seen(source: str) -> None:
    assert undated(source)


def test_a_warning_with_a_date_is_none() -> None:
    assert not undated(
        'def f():\n    """Sums. Deprecated: use g."""\n    _F.warn()\n    return g()\nwarnings.warn(_G.message, FutureWarning)'
    )


def test_the_page_is_fresh() -> None:
    assert deprecations.main(["--check"]) is None
    assert deprecations.PAGE.read_text(encoding="utf-8").count(" 0.2.0 | 20") == len(deprecations.found()) > 8


def resolved(path: str) -> Any:
    """What a dotted name stands for."""
    parts = path.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            value = getattr(value, part)
        return value
    raise ImportError(path)


@pytest.mark.parametrize("row", deprecations.found(), ids=lambda row: row.old)
def test_old_and_new_names_are_there(row: deprecations.Found) -> None:
    names = [name.partition("(")[0] for name in (row.old, row.instead) if name.startswith("torch_xla.")]
    assert all(callable(resolved(name)) for name in names)
    assert names or row.package == "xla-spmd"


def package(root: Path, source: str) -> Path:
    folder = root / "packages/xla-paint/src/xla_paint"
    folder.mkdir(parents=True)
    (folder / "old.py").write_text(source, encoding="utf-8")
    return root


def test_rows_are_read_from_the_sources(tmp_path: Path) -> None:
    root = package(tmp_path, '\n_OLD = Deprecation("a", "b", "xla-paint 1.0.0", "2027-03")\n')
    rows = deprecations.found(root)
    assert rows == [deprecations.Found("xla-paint", "packages/xla-paint/src/xla_paint/old.py:2", "a", "b", "xla-paint 1.0.0", "2027-03")]
    assert deprecations.due(rows, "xla-paint", "2027-02") == deprecations.due(rows, "xla-core", "2027-03") == []
    assert deprecations.due(rows, "xla-paint", "2027-03") == deprecations.due(rows, "xla-paint", "2031-01") == rows


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('Deprecation("a", b, "xla-paint 1.0.0", "2027-03")', "write the four texts"),
        ('Deprecation("a", "b", "xla-core 1.0.0", "2027-03")', "version"),
    ],
)
def test_a_row_that_cannot_be_read_is_an_error(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        deprecations.found(package(tmp_path, source))

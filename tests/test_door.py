"""The one door: a package beside the core imports `xla_core.abi` and `xla_core.testing`, nothing else of it; the core imports no plugin.

Import-linter checks the layers inside the packages, and this rule on what it can see. Here it is over folders: tests too, imports by
name too, and a package from its first day.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = "xla-core"
DOORS = ("xla_core.abi", "xla_core.testing")
PACKAGES = sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of each absolute import, and of each literal given to import_module or __import__."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__"):
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def through_the_door(name: str) -> bool:
    """Whether another package may import this name."""
    if name.partition(".")[0] != "xla_core":
        return True
    return any(name == door or name.startswith(f"{door}.") for door in DOORS)


def breaches(source: str) -> list[tuple[int, str]]:
    """Line and name of each import in another package's source that goes past the door."""
    return [(line, name) for line, name in imported(ast.parse(source)) if not through_the_door(name)]


def imports_of(folder: Path) -> Iterator[tuple[str, str]]:
    """`file:line` and name of each import below a folder."""
    for file in sorted(folder.rglob("*.py")):
        for line, name in imported(ast.parse(file.read_text(encoding="utf-8"))):
            yield f"{file.relative_to(ROOT)}:{line}", name


# PyTorch/XLA has the names of this module in `torch_xla.distributed.spmd.xla_sharding`, too.
_ALSO_ELSEWHERE = "torch_xla._internal.jax_workarounds."


def private_names_of_torch_xla(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each private name that is imported from `torch_xla` or used of its modules: the door beside the door."""
    modules = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if f"{getattr(node, 'module', None) or alias.name}.".startswith("torch_xla.")
    }
    for line, name in imported(tree):
        top, *parts = name.split(".")
        if top == "torch_xla" and any(map(is_private, parts)) and not name.startswith(_ALSO_ELSEWHERE):
            yield line, name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and ast.unparse(node.value).partition(".")[0] in modules:
            yield node.lineno, ast.unparse(node)


def is_private(name: str) -> bool:
    """Whether a name begins with an underscore and is not one of Python's own."""
    return name.startswith("_") and not name.endswith("__")


@pytest.mark.parametrize("package", [package for package in PACKAGES if package.name != CORE], ids=lambda package: package.name)
def test_packages_use_no_private_names_of_torch_xla(package: Path) -> None:
    wrong = [
        (f"{file.relative_to(ROOT)}:{line}", name)
        for file in sorted((package / "src").rglob("*.py"))
        for line, name in private_names_of_torch_xla(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert not wrong, f"what {package.name} needs of the core, xla_core.abi offers: {wrong}"


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("import torch_xla._XLAC", True),
        ("from torch_xla import _XLAC", True),
        ("from torch_xla._internal import tpu", True),
        ("from torch_xla.core.xla_model import _helper", True),
        ("import torch_xla.core.xla_model as xm", False),
        ("from torch_xla import runtime", False),
        ("import torch._C", False),
        ("import torch_xla.core.xla_model as xm\nxm._helper()", True),
        ("import torch_xla\nprint(torch_xla._XLAC)", True),
        ("import torch_xla.runtime as xr\nxr.world_size()", False),
        ("import torch_xla\nprint(torch_xla.__path__)", False),
    ],
)
def test_private_names_of_torch_xla_are_seen(source: str, private: bool) -> None:
    assert bool(list(private_names_of_torch_xla(ast.parse(source)))) == private


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_imports_stay_within_bounds(package: Path) -> None:
    if package.name == CORE:
        others = {other.name.replace("-", "_") for other in PACKAGES if other.name != CORE}
        wrong = [(place, name) for place, name in imports_of(package / "src") if name.partition(".")[0] in others]
        reason = "the core finds plugins by entry point and imports none"
    else:
        wrong = [(place, name) for place, name in imports_of(package) if not through_the_door(name)]
        reason = f"{package.name} may import {' and '.join(DOORS)} only"
    assert not wrong, f"{reason}: {wrong}"


def test_the_core_is_here() -> None:
    assert CORE in {package.name for package in PACKAGES}


@pytest.mark.parametrize(
    "source",
    [
        "import xla_core",
        "import xla_core.engine.graph.graph as graph",
        "from xla_core import ir",
        "from xla_core.engine.runtime.sync import sync",
        "from xla_core import abi, ir",
        "from xla_core.abi_private import thing",
        "def late():\n    from xla_core.base.config import flag",
        "import importlib\nimportlib.import_module('xla_core.ir')",
        "__import__('xla_core')",
    ],
)
def test_a_way_past_the_door_is_seen(source: str) -> None:
    assert len(breaches(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from xla_core import abi",
        "from xla_core import abi, testing",
        "import xla_core.abi",
        "from xla_core.abi import graph as graph_abi, require",
        "from xla_core.abi.tensors import sync",
        "from xla_core.testing import check_lowering",
        "import torch_xla.core.xla_model as xm",
        "from . import ir",
        "import xla_corelike",
    ],
)
def test_the_door_is_open(source: str) -> None:
    assert breaches(source) == []

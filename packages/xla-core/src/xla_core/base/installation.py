"""Check that the folder `torch_xla` has our files, all of them and no others, and load the plugins that fit this core.

The wheels of PyTorch/XLA up to 2.9, named `torch_xla`, own files of the same names as ours: installed later, they replace ours; removed
later, they take ours along.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, PackageNotFoundError, distributions, entry_points, version
from pathlib import Path
from typing import Any

from xla_core.base.errors import AbiVersionError, InstallationError

# The distributions that bring the rest of `torch_xla`.
DISTRIBUTED, SPMD, DEBUG, SERIALIZATION = "xla-distributed", "xla-spmd", "xla-debug", "xla-serialization"

# Next to this package in every installation, editable ones included.
_OURS = Path(__file__).parents[2] / "torch_xla" / "__init__.py"
# PyTorch/XLA has this file in `torch_xla`; ours never will.
_THEIRS = "version.py"
_PREFIX = "xla_core."  # of the groups of our entry points


def check() -> None:
    """Raise InstallationError, with the command that mends it, unless `import torch_xla` imports our files and only those."""
    text = problem()
    if text is not None:
        raise InstallationError(text)


def problem() -> str | None:
    """Check the files of `torch_xla`. Returns the problem and the command that mends it; None if there is none. Imports nothing."""
    loaded = sys.modules.get("torch_xla")
    spec: ModuleSpec | None = PathFinder.find_spec("torch_xla") if loaded is None else loaded.__spec__
    origin = Path(spec.origin) if spec is not None and spec.origin is not None else None
    if origin is None or origin == _OURS.parent.with_suffix(".py"):  # a folder without __init__.py, or our file that stands in for it
        text = f"{_OURS.parent} is incomplete: removing or upgrading PyTorch/XLA took files of xla-core along"
        return f"{text}. Run: {_reinstall()}"
    if origin != _OURS and not _same(origin):
        text = f"`import torch_xla` finds {origin}, which is not the one of xla-core ({_OURS})"
        return f"{text}. Take its folder off sys.path; if pip put it there, run: pip uninstall --yes torch_xla"
    if _OURS.with_name(_THEIRS).exists():
        text = f"{_OURS.parent} holds files of PyTorch/XLA{_their_version()} and of xla-core, one over the other"
        return f"{text}. Run: pip uninstall --yes torch_xla && {_reinstall()}"
    return None


def _same(origin: Path) -> bool:
    return origin.exists() and _OURS.exists() and origin.samefile(_OURS)


def _their_version() -> str:
    try:
        return f" {version('torch_xla')}"
    except PackageNotFoundError:
        return ""


def _reinstall() -> str:
    return f"pip install --force-reinstall --no-deps {' '.join(sorted(_family()))}"


def _family() -> set[str]:
    """The installed distributions that ship a part of `torch_xla`: those with entry points of ours."""
    ours = (distribution for distribution in distributions() if any(entry.group.startswith(_PREFIX) for entry in distribution.entry_points))
    return {"xla-core", *(distribution.name for distribution in ours)}


def is_installed(distribution: str) -> bool:
    """Whether a distribution is installed, even if its files are gone."""
    return next(iter(Distribution.discover(name=distribution)), None) is not None


def brought(distribution: str, module: str) -> bool:
    """Whether an installed distribution came with a module, even if its file is gone."""
    path = module.replace(".", "/")
    files = {str(file) for installed in Distribution.discover(name=distribution) for file in installed.files or ()}
    return bool(files & {f"{path}.py", f"{path}/__init__.py"})


_unfit: dict[str, AbiVersionError] = {}


def unfit(distribution: str) -> AbiVersionError | None:
    """The error for which a plugin was left out; None if it was not."""
    return _unfit.get(distribution)


def load(group: str) -> Iterator[tuple[str, Any]]:
    """Name and object of each entry point of a group, in the order of the names.

    A plugin that needs another core is left out, with one warning that names both wheels and the command; importing it raises the error.
    """
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        try:
            loaded = entry.load()
        except AbiVersionError as error:
            if entry.name not in _unfit:
                _unfit[entry.name] = error
                warnings.warn(f"{error}. Until then {entry.name} is left out", stacklevel=2)
            continue
        yield entry.name, loaded

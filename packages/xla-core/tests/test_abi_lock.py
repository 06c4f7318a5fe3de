"""What is locked of the ABI: signatures, fields, methods and values, and that what changes there has another version."""

from __future__ import annotations

import enum
import inspect
import json
import subprocess
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version as Release

from xla_core import abi
from xla_core._version import __version__

LOCK = Path(__file__).parent.parent / "abi.lock.json"
RECORDS = LOCK.parent / "abi"
ROOT = LOCK.parents[2]
Version = tuple[int, int]


class Change(enum.IntEnum):
    """How much of a version a change needs."""

    NONE = 0
    MINOR = 1
    MAJOR = 2


def signature(function: Any) -> str:
    return str(inspect.signature(function))


def default(kind: type, name: str) -> str:
    """` = 3` for a field with a default."""
    if is_dataclass(kind):
        field = next((each for each in fields(kind) if each.name == name), None)
        if field is not None and field.default_factory is not MISSING:
            return f" = {field.default_factory.__name__}()"
        return "" if field is None or field.default is MISSING else f" = {field.default!r}"
    defaults = getattr(kind, "_field_defaults", {})
    return f" = {defaults[name]!r}" if name in defaults else ""


def members(kind: type) -> dict[str, str]:
    """The public members of a class as text: values of enums, types and defaults of fields, signatures of methods."""
    if issubclass(kind, enum.Enum):
        return {member.name: repr(member.value) for member in kind}
    found = {"": ", ".join(base.__name__ for base in kind.__bases__)}
    for each in (each for each in reversed(kind.__mro__) if each.__module__.startswith("xla_core.")):
        found |= {name: f": {text}{default(kind, name)}" for name, text in inspect.get_annotations(each).items()}
        for name, value in vars(each).items():
            function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            if isinstance(value, property):
                found[name] = f": {inspect.get_annotations(value.fget)['return']}"
            elif inspect.isfunction(function) and not (name == "__init__" and is_dataclass(kind)):
                found[name] = signature(function)
    return {name: text for name, text in sorted(found.items()) if not name.startswith("_") or name == "__init__"}


def described(module: ModuleType) -> dict[str, Any]:
    things = {name: getattr(module, name) for name in module.__all__}
    return {
        name: members(thing) if isinstance(thing, type) else signature(thing) if callable(thing) else repr(thing)
        for name, thing in sorted(things.items())
    }


def current() -> dict[str, Any]:
    """The ABI as it is, in the form of the lock."""
    themes = {name: getattr(abi, name) for name in abi.__all__}
    found: dict[str, Any] = {"version": list(abi.ABI_VERSION), "require": signature(abi.require)}
    return found | {name: described(theme) for name, theme in sorted(themes.items()) if isinstance(theme, ModuleType)}


def leaves(tree: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """The texts of a lock by their paths, without the version."""
    if not isinstance(tree, Mapping):
        return {path: str(tree)}
    found = {path: ""} if path else {}
    return found | {
        place: text for name, below in tree.items() if name != "version" for place, text in leaves(below, (*path, name)).items()
    }


def change(old: Mapping[str, Any], new: Mapping[str, Any]) -> Change:
    """What kind of change leads from one lock to the other: additions alone are a minor one."""
    before, after = leaves(old), leaves(new)
    if any(after.get(path) != text for path, text in before.items()):
        return Change.MAJOR
    return Change.MINOR if len(after) > len(before) else Change.NONE


def version(lock: Mapping[str, Any]) -> Version:
    """The ABI_VERSION of a lock; those before ABI 2 had none in them."""
    major, minor = lock.get("version", (1, 0))
    return major, minor


def is_announced(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether the version of `new` says what changed since `old`."""
    before, after = version(old), version(new)
    kind = change(old, new)
    if kind is Change.NONE:
        return after >= before
    return after[0] > before[0] if kind is Change.MAJOR else after > before


def git(*arguments: str) -> str | None:
    """What git prints, None if it fails or is not there."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def recorded_locks() -> dict[Release, dict[str, Any]]:
    """The locks of all releases, as `hatch run release` recorded them, the oldest first."""
    found = {Release(file.stem): json.loads(file.read_text()) for file in RECORDS.glob("*.json")}
    return dict(sorted(found.items()))


def earlier_lock() -> tuple[str, dict[str, Any]]:
    """The lock of the last release, before the first one that of the parent of `main`, and which it is; skips the test without either."""
    if recorded := recorded_locks():
        release, lock = list(recorded.items())[-1]
        return f"xla-core {release}", lock
    if git("rev-parse", "--show-toplevel") != str(ROOT):
        pytest.skip("not in a git checkout of the repository: there is no earlier lock to compare with")
    for name in ("main~1", "HEAD~1"):
        text = git("show", f"{name}:{LOCK.relative_to(ROOT).as_posix()}")
        if text is not None:
            return name, json.loads(text)
    pytest.skip("the history here has no parent commit with a lock: fetch more of it")


def test_the_lock_is_the_abi() -> None:
    """A change needs a new ABI_VERSION (a minor for an addition, a major otherwise) and a new lock, in the same commit."""
    assert json.loads(LOCK.read_text()) == current(), "write the new lock with: python packages/xla-core/tests/test_abi_lock.py"


def test_what_changed_since_the_last_release_has_another_version() -> None:
    name, old = earlier_lock()
    new = json.loads(LOCK.read_text())
    assert is_announced(old, new), (
        f"the ABI changed since {name} ({change(old, new).name} change), and ABI_VERSION went from {version(old)} to {version(new)}"
    )


def test_a_release_keeps_its_abi() -> None:
    """What was released under a version is no other ABI later on."""
    recorded = recorded_locks().get(Release(__version__))
    assert recorded in (None, json.loads(LOCK.read_text())), f"xla-core {__version__} is released: another ABI needs a new _version.py"


def test_the_last_release_is_the_highest_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "RECORDS", tmp_path)
    for release in ("0.9.0", "0.10.0", "0.10.0rc1"):
        (tmp_path / f"{release}.json").write_text(json.dumps(OLD | {"of": release}))
    assert earlier_lock() == ("xla-core 0.10.0", OLD | {"of": "0.10.0"})


OLD = {
    "version": [2, 3],
    "require": "(version)",
    "graph": {"run": "(x: int) -> int", "Graph": {"": "object", "entries": ": tuple", "key": ": int", "line": "(self)"}},
}


def with_(**graph: Any) -> dict[str, Any]:
    return OLD | {"graph": OLD["graph"] | graph}  # type: ignore[operator]


CASES = {
    "nothing": (OLD, Change.NONE),
    "a function": (with_(walk="()"), Change.MINOR),
    "a module": (OLD | {"other": {"f": "()"}}, Change.MINOR),
    "an empty module": (OLD | {"other": {}}, Change.MINOR),
    "a field": (with_(Graph=OLD["graph"]["Graph"] | {"dead": ": tuple"}), Change.MINOR),  # type: ignore[index]
    "another signature": (with_(run="(x: int, y: int = 0) -> int"), Change.MAJOR),
    "no method": (with_(Graph={"": "object", "entries": ": tuple", "key": ": int"}), Change.MAJOR),
    "another type of a field": (with_(Graph=OLD["graph"]["Graph"] | {"entries": ": list"}), Change.MAJOR),  # type: ignore[index]
    "a class that was a function": (with_(run={"": "object"}), Change.MAJOR),
    "no function": (OLD | {"graph": {"Graph": OLD["graph"]["Graph"]}}, Change.MAJOR),  # type: ignore[index]
    "other of the door": (OLD | {"require": "(version, name)"}, Change.MAJOR),
}


@pytest.mark.parametrize("name", CASES)
def test_changes_of_a_lock(name: str) -> None:
    new, kind = CASES[name]
    assert change(OLD, new) is kind
    announced = {(2, 2): False, (2, 3): kind is Change.NONE, (2, 4): kind is not Change.MAJOR, (3, 0): True}
    assert {found: is_announced(OLD, new | {"version": list(found)}) for found in announced} == announced


texts = st.sampled_from(["()", "(x)", ": int", ""])
names = st.sampled_from(["a", "b", "c", "d"])
locks = st.dictionaries(names, texts | st.dictionaries(names, texts | st.dictionaries(names, texts, max_size=3), max_size=3), max_size=4)


@given(locks, locks)
def test_a_change_is_seen_from_both_sides(old: dict[str, Any], new: dict[str, Any]) -> None:
    """What one direction adds the other takes away."""
    there, back = change(old, new), change(new, old)
    assert change(old, old) is Change.NONE and (there is Change.NONE) == (back is Change.NONE) == (leaves(old) == leaves(new))
    if there is Change.MINOR:
        assert back is Change.MAJOR


@given(locks, names, locks)
def test_additions_to_any_lock_are_minor(old: dict[str, Any], name: str, more: dict[str, Any]) -> None:
    assert change(old, old | {f"new_{name}": more}) is Change.MINOR


if __name__ == "__main__":
    LOCK.write_text(json.dumps(current(), indent=2) + "\n")

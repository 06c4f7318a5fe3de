"""Find the container of the user's that keeps tensors, its name, and the line that adds to it."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from xla_debug.core import metrics as metrics_abi
from xla_debug.recording.appends import appending_line


class Name(NamedTuple):
    """The name of a thing, and the files in which it may be used under it, the likeliest first."""

    text: str
    paths: tuple[str, ...]


class Holder(NamedTuple):
    """A container that keeps tensors. text: such as `list 'losses' (40 items)`. name: None if nothing names it."""

    text: str
    name: Name | None

    def appended_at(self) -> str | None:
        """The user's line that adds to it, if there is one in the sources."""
        return appending_line(*self.name) if self.name is not None else None


_OURS = os.path.dirname(__file__)
_CONTAINERS = (list, dict, set, tuple, deque)


def holder_of(buffers: list[metrics_abi.LiveBuffer], depth: int = 1) -> Holder | None:
    """The container that has most of the tensors of these buffers; with more `depth`, most of the containers that have some each."""
    # Passed on as they are: no other container of them is made.
    things: tuple[Any, ...] = tuple([tensor for buffer in buffers for tensor in buffer.tensors])
    ours = {id(things), *(id(buffer.tensors) for buffer in buffers)}
    for _ in range(depth):
        if len(things) < 2:
            return None
        containers = _containers_of(things, ours)
        if not containers:
            return None
        most, count = max(containers, key=lambda found: found[1])
        if count >= len(things) // 2:
            name = name_of(most)
            return Holder(f"{type(most).__name__}{f' {name.text!r}' if name else ''} ({len(most)} items)", name)
        things = tuple([container for container, _ in containers])
        ours |= {id(containers), id(things), *map(id, containers)}
    return None


def _containers_of(things: tuple[Any, ...], ours: set[int]) -> list[tuple[Any, int]]:
    """The containers that hold any of these, but for those in `ours`, and how many each holds."""
    wanted = set(map(id, things))
    return [
        (referrer, sum(id(item) in wanted for item in tuple(referrer.values() if isinstance(referrer, dict) else referrer)))
        for referrer in gc.get_referrers(*things)
        if isinstance(referrer, _CONTAINERS) and id(referrer) not in ours
    ]


@cache
def main_file() -> str:
    """The path of the script; empty if there is none. To be called while it runs: when it has ended, Python no longer says."""
    return vars(sys.modules["__main__"]).get("__file__") or ""


def name_of(thing: Any) -> Name | None:
    """The name of a global of the script, of an attribute of an object, or of a local variable of a running function."""
    scopes = list(_scopes())
    for scope, path in scopes:
        for name, value in list(scope.items()):
            if value is thing:
                return Name(name, (path,))
    for scope, path in scopes:
        for name, value in list(scope.items()):
            for attribute, held in list(getattr(value, "__dict__", {}).items()) if not isinstance(value, type) else []:
                if held is thing:
                    module = sys.modules.get(type(value).__module__)
                    return Name(f"{name}.{attribute}", (getattr(module, "__file__", None) or path, path))
    return None


def _scopes() -> Iterator[tuple[dict[str, Any], str]]:
    """The globals of the script, and the local variables of this thread's functions but ours, with their files."""
    yield vars(sys.modules["__main__"]), main_file()
    frame = sys._current_frames().get(threading.get_ident())
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OURS):
            yield frame.f_locals, frame.f_code.co_filename
        frame = frame.f_back

"""Find the user's container that keeps tensors alive, its name, and the line that adds to it."""

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
    """The name of a container, and the files that may use it under this name, the likeliest first."""

    text: str
    paths: tuple[str, ...]


class TensorHolder(NamedTuple):
    """A container that keeps tensors. text: such as `list 'losses' (40 items)`. name: None if nothing names it."""

    text: str
    name: Name | None

    def appended_at(self) -> str | None:
        """The user's line that adds to the container; None if the sources have none."""
        return appending_line(*self.name) if self.name is not None else None


_OURS = os.path.dirname(__file__)
_CONTAINERS = (list, dict, set, tuple, deque)


def holder_of(buffers: list[metrics_abi.LiveBuffer], depth: int = 1) -> TensorHolder | None:
    """Find the container of most tensors of these buffers; with more `depth`, of most containers that hold some of the tensors each."""
    # The tuple is passed on as it is, so that no other container of ours refers to the tensors.
    objects = _tensors(buffers)
    ours = {id(objects), *(id(buffer.tensors) for buffer in buffers)}
    for _ in range(depth):
        if len(objects) < 2:
            return None
        containers = _containers_of(objects, ours)
        holder = _main_holder(objects, containers)
        if holder is not None or not containers:
            return holder
        objects = tuple(containers)
        ours |= {id(containers), id(objects)}
    return None


def holders_of(groups: list[list[metrics_abi.LiveBuffer]]) -> list[TensorHolder | None]:
    """For each group of buffers, find the container that has most of their tensors, with one call of the garbage collector."""
    tensors = [_tensors(group) if len(group) > 1 else () for group in groups]
    objects = tuple([tensor for group in tensors for tensor in group])
    ours = {id(objects), *map(id, tensors), *(id(buffer.tensors) for group in groups for buffer in group)}
    containers = _containers_of(objects, ours) if objects else []
    return [_main_holder(group, containers) if len(group) > 1 else None for group in tensors]


def _tensors(buffers: list[metrics_abi.LiveBuffer]) -> tuple[Any, ...]:
    return tuple([tensor for buffer in buffers for tensor in buffer.tensors])


def _containers_of(objects: tuple[Any, ...], ours: set[int]) -> list[Any]:
    """List the containers that hold any of the objects, except those in `ours`."""
    return [referrer for referrer in gc.get_referrers(*objects) if isinstance(referrer, _CONTAINERS) and id(referrer) not in ours]


def _main_holder(objects: tuple[Any, ...], containers: list[Any]) -> TensorHolder | None:
    """Find the container that has most of the objects, if it has at least half of them."""
    ids = set(map(id, objects))
    counts = [sum(id(item) in ids for item in tuple(holder.values() if isinstance(holder, dict) else holder)) for holder in containers]
    count = max(counts, default=0)
    if not count or count < len(objects) // 2:
        return None
    largest = containers[counts.index(count)]
    name = name_of(largest)
    return TensorHolder(f"{type(largest).__name__}{f' {name.text!r}' if name else ''} ({len(largest)} items)", name)


@cache
def main_file() -> str:
    """The path of the script; empty if there is none. Call it first while the script runs: at its end Python forgets the path."""
    return vars(sys.modules["__main__"]).get("__file__") or ""


def name_of(target: Any) -> Name | None:
    """Name an object by a global of the script, a local variable of a running function, or an attribute of one of these."""
    scopes = list(_scopes())
    for scope, path in scopes:
        for name, value in list(scope.items()):
            if value is target:
                return Name(name, (path,))
    for scope, path in scopes:
        for name, value in list(scope.items()):
            for attribute, member in list(getattr(value, "__dict__", {}).items()) if not isinstance(value, type) else []:
                if member is target:
                    module = sys.modules.get(type(value).__module__)
                    return Name(f"{name}.{attribute}", (getattr(module, "__file__", None) or path, path))
    return None


def _scopes() -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the script's globals, and the local variables of this thread's functions except ours, with their files."""
    yield vars(sys.modules["__main__"]), main_file()
    frame = sys._current_frames().get(threading.get_ident())
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OURS):
            yield frame.f_locals, frame.f_code.co_filename
        frame = frame.f_back

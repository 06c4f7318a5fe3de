"""Lets one thread see which attributes its Python looks up: while a call is recorded, classes tell of each lookup on their objects."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Noting = Callable[[Any, str], None]
"""Called with an object and a name before the attribute is looked up."""


class _Own(threading.local):
    """What this thread does about lookups."""

    note: Noting | None = None


_own = _Own()
_lock = threading.Lock()
_watchers = 0
_restore: dict[type, Any] = {}
_refused: weakref.WeakSet[type] = weakref.WeakSet()
_NONE = object()


def start(note: Noting) -> None:
    """Call `note` for this thread's lookups on objects of watched classes, until `stop`."""
    global _watchers
    with _lock:
        _watchers += 1
    _own.note = note


def stop() -> None:
    """End what `start` began."""
    global _watchers
    _own.note = None
    with _lock:
        _watchers -= 1
        if not _watchers:
            while _restore:
                cls, original = _restore.popitem()
                if original is _NONE:
                    type.__delattr__(cls, "__getattribute__")
                else:
                    type.__setattr__(cls, "__getattribute__", original)


@contextmanager
def silence() -> Iterator[None]:
    """Look up attributes without telling."""
    note, _own.note = _own.note, None
    try:
        yield
    finally:
        _own.note = note


def watch(cls: type) -> bool:
    """Watch lookups on the objects of a class and its subclasses. Returns False if the class cannot be changed."""
    if getattr(cls.__getattribute__, "tells_of_lookups", False):
        return True
    if cls in _refused or issubclass(cls, type):
        return False
    with _lock:
        before = vars(cls).get("__getattribute__", _NONE)
        try:
            type.__setattr__(cls, "__getattribute__", _telling(cls.__getattribute__))
        except TypeError:  # a class of C
            _refused.add(cls)
            return False
        _restore[cls] = before
    return True


def _telling(original: Any) -> Any:
    def __getattribute__(self: Any, name: str) -> Any:
        note = _own.note
        if note is not None:
            _own.note = None  # what noting looks up is nobody's
            try:
                note(self, name)
            finally:
                _own.note = note
        return original(self, name)

    __getattribute__.tells_of_lookups = True  # type: ignore[attr-defined]
    return __getattribute__

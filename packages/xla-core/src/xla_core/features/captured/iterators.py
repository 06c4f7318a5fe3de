"""Iterators and sources of random numbers on the host: a call that takes from them cannot be repeated without its Python."""

from __future__ import annotations

import itertools
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

_OF_PYTHON = frozenset({"builtins", "itertools"})


class Iterators:
    """The iterators that a call can reach, with their states before it."""

    def __init__(self) -> None:
        self._held: list[tuple[Any, str, Callable[[Any], Any], Any]] = []

    def holds(self, value: Any, name: str) -> bool:
        """Note an object if it is an iterator of Python's, or a source of random numbers. Returns whether it is one."""
        state = _state_of(value)
        if state is not None:
            self._held.append((value, name, state, state(value)))
        return state is not None

    def advanced(self) -> list[str]:
        """What the call took, as reasons not to capture it."""
        return [
            f"it takes from {name} ({type(value).__name__}), and a captured call would not: do that before the call, and give what it took "
            "as an argument"
            for value, name, state, before in self._held
            if state(value) != before
        ]


def _state_of(value: Any) -> Callable[[Any], Any] | None:
    """A function that tells whether an iterator has moved on; None for other objects."""
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        return _of_numpy
    if isinstance(value, types.GeneratorType):
        return _of_generator
    if isinstance(value, itertools.count):
        return repr
    if type(value).__module__ not in _OF_PYTHON or not isinstance(value, Iterator):
        return None
    return _of_hint if hasattr(value, "__length_hint__") else _of_reduce if hasattr(type(value), "__reduce__") else None


def _of_numpy(source: Any) -> str:
    return repr(source.bit_generator.state) if isinstance(source, np.random.Generator) else repr(source.get_state(legacy=False))


def _of_generator(generator: types.GeneratorType[Any, Any, Any]) -> Any:
    frame = generator.gi_frame
    return None if frame is None else (frame.f_lasti, [(key, id(value)) for key, value in frame.f_locals.items()])


def _of_hint(iterator: Any) -> Any:
    return iterator.__length_hint__()


def _of_reduce(iterator: Any) -> Any:
    """How far an iterator of itertools has come, as copies of it are made. Later Pythons do not tell."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return repr(iterator.__reduce__())
        except (TypeError, AttributeError):
            return None


def random_states() -> tuple[Any, ...]:
    """The states of the random numbers that NumPy, Python and torch draw on the host."""
    return repr(np.random.get_state(legacy=False)), random.getstate(), torch.default_generator.get_state().numpy().tobytes()


def drawn(before: tuple[Any, ...]) -> list[str]:
    """Which of them a call has drawn from, as reasons not to capture it."""
    return [
        f"it draws random numbers of {source} on the host: draw them before the call, and give them as arguments, or draw on the device"
        for source, old, new in zip(("NumPy", "Python", "torch"), before, random_states(), strict=True)
        if old != new
    ]

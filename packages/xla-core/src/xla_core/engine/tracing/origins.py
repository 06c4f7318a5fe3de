"""Where the values of a recorded function come from, and what it returns: shared by all code that records torch code and runs it later.

An argument here is a tensor's storage, whatever views of it are passed; its value is the one before the call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from xla_core.engine.tensor.storage import Storage


@dataclass(frozen=True, slots=True)
class Argument:
    """The data of argument `index`."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The data of a storage that outlives calls: of a parameter, a buffer, an optimizer's state."""

    storage: Storage

    def __eq__(self, other: object) -> bool:
        return type(other) is State and other.storage is self.storage

    def __hash__(self) -> int:
        return id(self.storage)


@dataclass(frozen=True, slots=True)
class Gradient:
    """The data of the gradient of leaf `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Result:
    """Result `index` of the program."""

    index: int


@dataclass(frozen=True, slots=True)
class Zeros:
    """Zeros that were written over a whole storage and are not made before they are used."""


Source: TypeAlias = Argument | State | Gradient
"""Data that exists before a call."""

Origin: TypeAlias = Source | Result
"""Where a value comes from."""


@dataclass(frozen=True, slots=True)
class NewStorage:
    """Storage `index` among the storages that a call makes."""

    index: int


@dataclass(frozen=True, slots=True)
class ViewOf:
    """A returned tensor: view `spec` of a storage."""

    storage: Source | NewStorage
    spec: Any


@dataclass(frozen=True, slots=True)
class Constant:
    """A returned object that is the same at each call: a number, a text, a tensor on the CPU."""

    value: Any


@dataclass(frozen=True, slots=True)
class ArgumentItself:
    """A returned object that is object `index` among the arguments."""

    index: int

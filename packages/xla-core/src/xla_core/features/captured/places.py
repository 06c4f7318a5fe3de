"""The places of values around a captured call: where inputs come from, where results go, and what is returned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from xla_core.engine.tensor.storage import Storage


@dataclass(frozen=True, slots=True)
class Argument:
    """The storage of the call's tensor argument `number`."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A storage that outlives calls: of a parameter, a buffer, an optimizer's state."""

    storage: Storage

    def __eq__(self, other: object) -> bool:
        return type(other) is Held and other.storage is self.storage

    def __hash__(self) -> int:
        return id(self.storage)


@dataclass(frozen=True, slots=True)
class Gradient:
    """The storage of the gradient of leaf `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class Result:
    """Result `number` of the program."""

    number: int


Place = Argument | Held | Gradient
Origin = Result | Place  # of a place: its value before the call


@dataclass(frozen=True, slots=True)
class New:
    """A tensor that the call returns: view `spec` of new storage `number`."""

    number: int
    spec: Any


@dataclass(frozen=True, slots=True)
class Same:
    """A returned tensor that is there already: argument `place`, or, if that is None, `found`, which has this `identity`."""

    place: int | None
    identity: int = 0
    found: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Shown:
    """A returned tensor that shows, as view `spec`, a storage that was there before."""

    place: Place
    spec: Any


@dataclass(frozen=True, slots=True)
class Passed:
    """A returned object that is no tensor, number or text: that of the arguments, `number` counting those."""

    number: int


@dataclass(frozen=True, slots=True)
class Plain:
    """A returned number or text."""

    value: Any

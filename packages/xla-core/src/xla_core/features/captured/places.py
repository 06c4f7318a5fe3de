"""Places where Python keeps values that outlive a call: attributes, variables, items of containers, the contents of arrays on the host."""

from __future__ import annotations

import contextvars
import gc
import struct
import types
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

PLAIN = (int, float, complex, str, bytes, bool, type(None))
ABSENT = object()
"""The value of an empty place."""
MOST_ITEMS = 10_000
"""A larger container is data, not state."""
_MOST_BYTES = 1 << 16
"""The contents of a larger array on the host are not compared."""
_BASES: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)


class Place(Protocol):
    """Where a value is kept. key: equal for the same place; owner: what must stay alive for that."""

    @property
    def owner(self) -> Any: ...
    @property
    def key(self) -> tuple[Any, ...]: ...
    def get(self) -> Any:
        """The present value; ABSENT if there is none."""

    def put(self, value: Any) -> None:
        """Store a value; ABSENT deletes it."""


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """An entry of a dict: an attribute in an object's `__dict__`, a global variable, an item of a user's dict."""

    owner: dict[Any, Any]
    name: Any

    @property
    def key(self) -> tuple[Any, ...]:
        """The dict and the key."""
        return id(self.owner), self.name

    def get(self) -> Any:
        """The entry."""
        return dict.get(self.owner, self.name, ABSENT)

    def put(self, value: Any) -> None:
        """Store the entry."""
        if value is ABSENT:
            self.owner.pop(self.name, None)
        else:
            self.owner[self.name] = value


@dataclass(frozen=True, slots=True, eq=False)
class ListItem:
    """An item of a list."""

    owner: list[Any]
    index: int

    @property
    def key(self) -> tuple[Any, ...]:
        """The list and the index."""
        return id(self.owner), self.index

    def get(self) -> Any:
        """The item."""
        return self.owner[self.index] if self.index < len(self.owner) else ABSENT

    def put(self, value: Any) -> None:
        """Store the item."""
        self.owner[self.index] = value


@dataclass(frozen=True, slots=True, eq=False)
class ClassItem:
    """An attribute in the dict of a class."""

    owner: type
    name: str

    @property
    def key(self) -> tuple[Any, ...]:
        """The class and the name."""
        return id(self.owner), self.name

    def get(self) -> Any:
        """The attribute, not bound."""
        return vars(self.owner).get(self.name, ABSENT)

    def put(self, value: Any) -> None:
        """Set the attribute."""
        if value is ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A member of an object with `__slots__`."""

    member: types.MemberDescriptorType
    owner: Any

    @property
    def key(self) -> tuple[Any, ...]:
        """The object and the member's name."""
        return id(self.owner), self.member.__name__

    def get(self) -> Any:
        """The member's value."""
        try:
            return self.member.__get__(self.owner)
        except AttributeError:
            return ABSENT

    def put(self, value: Any) -> None:
        """Set the member."""
        if value is ABSENT:
            self.member.__delete__(self.owner)
        else:
            self.member.__set__(self.owner, value)


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A variable of an enclosing function."""

    owner: types.CellType

    @property
    def key(self) -> tuple[Any, ...]:
        """The cell."""
        return (id(self.owner),)

    def get(self) -> Any:
        """The variable's value."""
        try:
            return self.owner.cell_contents
        except ValueError:  # a variable that has no value yet
            return ABSENT

    def put(self, value: Any) -> None:
        """Set the variable."""
        if value is ABSENT:
            del self.owner.cell_contents
        else:
            self.owner.cell_contents = value


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """A context variable, in the context of the calling thread or task."""

    owner: contextvars.ContextVar[Any]

    @property
    def key(self) -> tuple[Any, ...]:
        """The variable."""
        return (id(self.owner),)

    def get(self) -> Any:
        """The variable's value, or its default."""
        return self.owner.get(ABSENT)

    def put(self, value: Any) -> None:
        """Set the variable."""
        self.owner.set(value)


@dataclass(frozen=True, slots=True, eq=False)
class HostNumber:
    """The number in a 0-d tensor on the CPU."""

    owner: torch.Tensor
    KIND: ClassVar[str] = "number"

    @property
    def key(self) -> tuple[Any, ...]:
        """The tensor."""
        return id(self.owner), self.KIND

    def get(self) -> Any:
        """The number."""
        return self.owner.item()

    def put(self, value: Any) -> None:
        """Store the number in the tensor."""
        self.owner.fill_(value)


@dataclass(frozen=True, slots=True, eq=False)
class Within:
    """The contents of a dict, a list, or the `__dict__` of an object, which is container `index` among a call's arguments."""

    owner: Any
    index: int
    KIND: ClassVar[str] = "argument"

    @property
    def key(self) -> tuple[Any, ...]:
        """The index."""
        return self.KIND, self.index

    def get(self) -> Any:
        """A copy of the contents."""
        return dict(dict.items(self.owner)) if isinstance(self.owner, dict) else list(self.owner)

    def put(self, value: Any) -> None:
        """Replace the contents."""
        self.owner.clear()
        (self.owner.update if isinstance(self.owner, dict) else self.owner.extend)(value)


class Contents:
    """A place for something that is read from its owner, and cannot be put back: equal contents are the same value."""

    def __init__(self, owner: Any, kind: str) -> None:
        self.owner = owner
        self._kind = kind
        self._read = _READ[kind]

    @property
    def key(self) -> tuple[Any, ...]:
        """The owner and what is read."""
        return id(self.owner), self._kind

    def get(self) -> Any:
        """What is read."""
        return self._read(self.owner)

    def put(self, value: Any) -> None:
        """Not possible."""
        raise TypeError(f"the {self._kind} of {type(self.owner).__name__} cannot be put back")


def _members(container: Any) -> Any:
    return frozenset(own_items(container))


def _items(container: Any) -> Any:
    return tuple(own_items(container))


def _size(container: Any) -> int:
    return len(own_items(container))


def _tensor_bytes(tensor: torch.Tensor) -> Any:
    if not tensor.dim():
        return tensor.dtype, tensor.item()
    return tensor.dtype, tuple(tensor.shape), tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def _array_bytes(array: np.ndarray[Any, Any]) -> Any:
    return array.dtype.str, array.shape, array.tobytes()


def _cache(cached: Any) -> Any:
    """The keys and results that a cached function keeps, in the order of their addresses; counts, if there are too many."""
    if cached.cache_info().currsize > MOST_ITEMS:
        return cached.cache_info()[1:]  # without the hits
    kept = gc.get_referents(cached)
    kept += [result for each in kept if type(each) is dict for result in each.values()]  # a cache without a bound has them in a dict
    return tuple(sorted(kept, key=id))


def _names(holder: Any) -> tuple[str, ...]:
    """Of a class or a `__dict__`; without the method by which lookups are watched."""
    return tuple(name for name in (vars(holder) if isinstance(holder, type) else holder) if name != "__getattribute__")


_READ: dict[str, Any] = {
    "keys": _items,
    "members": _members,
    "items": _items,
    "length": _size,
    "values": lambda container: tuple(dict.values(container)),
    "tensor": _tensor_bytes,
    "version": lambda tensor: tensor._version,
    "array": _array_bytes,
    "bytes": bytes,
    "flag": lambda event: event.is_set(),
    "objects": lambda array: tuple(array.flat),
    "target": lambda reference: None if reference() is None else id(reference()),
    "cache": _cache,
    "names": _names,
    "definition": lambda function: (function.__code__, function.__defaults__, tuple((function.__kwdefaults__ or {}).items())),
    "class": type,
    "mapping": lambda proxy: tuple(proxy.items()),
}


def checksum(array: np.ndarray[Any, Any]) -> int:
    """A number that is another one if the contents of an array are."""
    return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data) if not array.dtype.hasobject else hash(tuple(map(id, array.flat)))


def has_small_contents(value: Any) -> bool:
    """Whether the contents of a tensor on the CPU, or of a NumPy array, are compared."""
    if isinstance(value, np.ndarray):
        return value.nbytes <= _MOST_BYTES and not value.dtype.hasobject
    return value.layout is torch.strided and value.numel() * value.element_size() <= _MOST_BYTES and not value.is_quantized


class OwnItems:
    """The items of a container as its builtin base class has them; a derived class may, for example, import modules on access."""

    __slots__ = ("_base", "_container")

    def __init__(self, container: Any, base: Any) -> None:
        self._container, self._base = container, base

    def __len__(self) -> int:
        return int(self._base.__len__(self._container))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._base.__iter__(self._container))


def own_items(container: Any) -> Any:
    """The keys of a dict, or the items of a list, set or deque, as Python's own class has them."""
    base, cls = next(base for base in _BASES if isinstance(container, base)), type(container)
    plain = cls.__iter__ is base.__iter__ and cls.__len__ is base.__len__
    return container if plain else OwnItems(container, base)


def same(now: Any, before: Any) -> bool:
    """Whether a value counts as the same: numbers, texts and tuples of them by value, everything else by identity."""
    if now is before:
        return True
    cls = type(now)
    if cls is not type(before):
        return False
    if cls is float:
        return struct.pack("d", now) == struct.pack("d", before)  # 0.0 is not -0.0
    if cls is tuple:
        return len(now) == len(before) and (all(map(is_, now, before)) or all(map(same, now, before)))
    if isinstance(now, np.generic):
        return bool(now.tobytes() == before.tobytes())
    if cls in _BY_VALUE:
        return bool(now == before)
    return False


_BY_VALUE = frozenset({*PLAIN, types.MethodType, types.CodeType, frozenset, torch.Size, torch.dtype, torch.device, slice, range})


def instance_dict(instance: Any) -> dict[str, Any] | None:
    """The `__dict__` of an object, without code of its class."""
    try:
        attributes = object.__getattribute__(instance, "__dict__")
    except AttributeError:
        return None
    return attributes if isinstance(attributes, dict) else None


def of_class(cls: type, name: str) -> tuple[type, Any] | None:
    """The class, among `cls` and its bases, that has an attribute, with the attribute; None if none has."""
    for base in cls.__mro__:
        attributes: Mapping[str, Any] = vars(base)
        if name in attributes:
            return base, attributes[name]
    return None

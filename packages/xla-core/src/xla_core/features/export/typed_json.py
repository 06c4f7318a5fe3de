"""Reads JSON data as dataclasses and other values. Checks each type, and calls nothing but their constructors."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from functools import cache
from typing import Any


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _wrong(where: str, expected: Any, data: Any) -> ValueError:
    return ValueError(f"{where} is {str(data)[:60]!r}, not {getattr(expected, '__name__', expected)}")


def read(expected: Any, data: Any, where: str, least: int = 0) -> Any:
    """Read `data` of JSON as a value of type `expected`.

    expected: a scalar, an enum, a list, tuple, dict with text keys or dataclass of these, a union with None, or a union of scalars.
    where: the name of the value, for messages. least: smallest whole number. Keys without a field in a dataclass are ignored; fields with a
    default may be missing. Raises ValueError.
    """
    origin, inner = typing.get_origin(expected), typing.get_args(expected)
    if expected is Any:
        return data
    if origin is types.UnionType:
        return _read_union(expected, data, where, least)
    if origin in (list, tuple):
        if not isinstance(data, list) or (origin is tuple and inner[-1] is not Ellipsis and len(data) != len(inner)):
            raise _wrong(where, "a list", data)
        item_types = inner if origin is tuple and inner[-1] is not Ellipsis else [inner[0]] * len(data)
        return origin(
            [
                read(item_type, item, f"{where}[{index}]", least)
                for index, (item_type, item) in enumerate(zip(item_types, data, strict=True))
            ]
        )
    if not isinstance(data, dict) and (origin is dict or dataclasses.is_dataclass(expected)):
        raise _wrong(where, "an object", data)
    if origin is dict:
        return {name: read(inner[1], item, f"{where}[{name!r}]", least) for name, item in data.items()}
    if dataclasses.is_dataclass(expected):
        return _read_fields(typing.cast(type, expected), data, where, least)
    if isinstance(expected, type) and issubclass(expected, enum.Enum):
        try:
            return expected(data)
        except ValueError:
            raise _wrong(where, expected, data) from None
    if type(data) is not expected or (expected is int and data < least):
        raise _wrong(where, expected, data)
    return data


def _read_union(expected: Any, data: Any, where: str, least: int) -> Any:
    members = [member for member in typing.get_args(expected) if member is not type(None)]
    if data is None and len(members) < len(typing.get_args(expected)):
        return None
    if len(members) > 1 and type(data) not in members:
        raise _wrong(where, expected, data)
    return read(members[0], data, where, least) if len(members) == 1 else data


def _read_fields(cls: Any, data: dict[str, Any], where: str, least: int) -> Any:
    hints = _hints(cls)
    optional = {field.name for field in dataclasses.fields(cls) if not _is_required(field)}
    missing = [name for name in hints if name not in data and name not in optional]
    if missing:
        raise ValueError(f"{where} has no {missing[0]!r}")
    return cls(**{name: read(hint, data[name], f"{where}.{name}", least) for name, hint in hints.items() if name in data})


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING

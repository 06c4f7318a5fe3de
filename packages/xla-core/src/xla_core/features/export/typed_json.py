"""Data of JSON as the frozen values that it should stand for: each type is checked, and nothing is called but their constructors."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from functools import cache
from typing import Any


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _wrong(where: str, wanted: Any, data: Any) -> ValueError:
    return ValueError(f"{where} is {str(data)[:60]!r}, not {getattr(wanted, '__name__', wanted)}")


def read(wanted: Any, data: Any, where: str, least: int = 0) -> Any:
    """`data` of JSON as a value of type `wanted`.

    wanted: a scalar, an enum, a list, tuple, dict by text or dataclass of such, a union with None, or one of scalars.
    where: what it is, for messages. least: of whole numbers. Keys that a dataclass has no field for are left out; fields with a default may
    be missing. Raises ValueError.
    """
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any:
        return data
    if origin is types.UnionType:
        return _read_union(wanted, data, where, least)
    if origin in (list, tuple):
        if not isinstance(data, list) or (origin is tuple and inner[-1] is not Ellipsis and len(data) != len(inner)):
            raise _wrong(where, "a list", data)
        kinds = inner if origin is tuple and inner[-1] is not Ellipsis else [inner[0]] * len(data)
        return origin([read(kind, item, f"{where}[{number}]", least) for number, (kind, item) in enumerate(zip(kinds, data, strict=True))])
    if not isinstance(data, dict) and (origin is dict or dataclasses.is_dataclass(wanted)):
        raise _wrong(where, "an object", data)
    if origin is dict:
        return {name: read(inner[1], item, f"{where}[{name!r}]", least) for name, item in data.items()}
    if dataclasses.is_dataclass(wanted):
        return _read_fields(typing.cast(type, wanted), data, where, least)
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        try:
            return wanted(data)
        except ValueError:
            raise _wrong(where, wanted, data) from None
    if type(data) is not wanted or (wanted is int and data < least):
        raise _wrong(where, wanted, data)
    return data


def _read_union(wanted: Any, data: Any, where: str, least: int) -> Any:
    kinds = [kind for kind in typing.get_args(wanted) if kind is not type(None)]
    if data is None and len(kinds) < len(typing.get_args(wanted)):
        return None
    if len(kinds) > 1 and type(data) not in kinds:
        raise _wrong(where, wanted, data)
    return read(kinds[0], data, where, least) if len(kinds) == 1 else data


def _read_fields(wanted: Any, data: dict[str, Any], where: str, least: int) -> Any:
    hints = _hints(wanted)
    optional = {field.name for field in dataclasses.fields(wanted) if not _is_required(field)}
    missing = [name for name in hints if name not in data and name not in optional]
    if missing:
        raise ValueError(f"{where} has no {missing[0]!r}")
    return wanted(**{name: read(kind, data[name], f"{where}.{name}", least) for name, kind in hints.items() if name in data})


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING

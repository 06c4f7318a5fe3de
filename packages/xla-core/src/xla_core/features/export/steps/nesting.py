"""Writes nested arguments and results, and plain values among them, as JSON."""

from __future__ import annotations

import base64
import math
from typing import Any

import torch

from xla_core.base.dtypes import DTYPES
from xla_core.base.errors import StepFileError

_NUMBERS = {str(number): number for number in (math.inf, -math.inf, math.nan)}
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
_MOST_NESTED = 100


def flatten(nested: Any) -> tuple[list[Any], Any]:
    """Flatten tuples, lists and dicts to leaves, and their nesting as JSON with indices of leaves.

    A tuple is {"tuple": […]}, a list {"list": […]}, a dict {"dict": [[key, …], …]}.

    Raises TypeError for a dict with keys that are neither texts nor whole numbers, ValueError for too deep a nesting.
    """
    leaves: list[Any] = []

    def walk(item: Any, depth: int) -> Any:
        if depth > _MOST_NESTED:
            raise ValueError(f"more than {_MOST_NESTED} containers are in each other")
        if type(item) in (tuple, list):
            return {type(item).__name__: [walk(child, depth + 1) for child in item]}
        if type(item) is dict:
            wrong = next((key for key in item if type(key) not in (str, int)), None)
            if wrong is not None:
                raise TypeError(f"a dict has the key {wrong!r}: take texts or whole numbers")
            return {"dict": [[key, walk(child, depth + 1)] for key, child in item.items()]}
        leaves.append(item)
        return len(leaves) - 1

    return leaves, walk(nested, 0)


def unflatten(leaves: list[Any], nesting: Any) -> Any:
    """Build the nested object. Raises StepFileError for data that is not a nesting of these leaves."""
    if type(nesting) is int and 0 <= nesting < len(leaves):
        return leaves[nesting]
    if isinstance(nesting, dict) and len(nesting) == 1:
        ((container, items),) = nesting.items()
        if container in ("tuple", "list") and isinstance(items, list):
            children = [unflatten(leaves, item) for item in items]
            return tuple(children) if container == "tuple" else children
        if container == "dict" and isinstance(items, list) and all(isinstance(item, list) and len(item) == 2 for item in items):
            return {key: unflatten(leaves, item) for key, item in items if type(key) in (str, int)}
    raise StepFileError(f"a nesting has {str(nesting)[:60]!r}")


def encode(value: Any) -> Any:
    """A plain value as JSON, distinct for each value. Raises TypeError for other values."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch.Size):
        return {"size": list(value)}
    raise TypeError(f"{type(value).__name__} is no plain value")


def decode(data: Any) -> Any:
    """Read a value that `encode` wrote. Raises StepFileError for other data."""
    if not isinstance(data, dict):
        if data is None or type(data) in (bool, int, float, str):
            return data
        raise StepFileError(f"a constant is {str(data)[:60]!r}")
    try:
        ((type_name, text),) = data.items()
        if type_name == "float":
            return _NUMBERS[text]
        if type_name == "bytes":
            return base64.b64decode(text, validate=True)
        if type_name == "dtype":
            return _DTYPES[text]
        if type_name == "device":
            return torch.device(text)
        if type_name == "size":
            return torch.Size(text)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise StepFileError(f"a constant is {str(data)[:60]!r}") from error
    raise StepFileError(f"a constant is {str(data)[:60]!r}")

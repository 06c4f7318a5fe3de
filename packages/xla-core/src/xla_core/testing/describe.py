"""All that this package knows of one operator, as text: its schema, its row of the op table, and how it is called."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import torch

import xla_core
from xla_core.activation import activate
from xla_core.base.private_torch import OpOverload, operation_names
from xla_core.engine.tensor import autocast
from xla_core.engine.tensor.dispatch import Route, custom_handler, route
from xla_core.engine.tensor.recorded import row_of
from xla_core.engine.tensor.schema import full_name
from xla_core.ops.shape.views import VIEWS
from xla_core.ops.table import AUTOCAST, UNLOWERED, OpSpec, operator_of, overload_named

_SOURCE = Path(xla_core.__file__).parent


def describe(name: str) -> str:
    """What is known of the overload `aten::add_.Tensor` (or `add_.Tensor`), some lines of text for people.

    Raises ValueError for a name that torch does not have, with names that are close.
    """
    activate()
    func = _overload(name if "::" in name else f"aten::{name}")
    lines = [("schema", str(func._schema)), ("called", _called(func)), ("autocast", _autocast(func)), *_facts(func)]
    return "\n".join([full_name(func), *(f"  {title:<18} {text}" for title, text in lines)])


def _overload(name: str) -> OpOverload:
    known = set(operation_names())
    operator, _, overload = name.partition(".")
    overloads = sorted(each for each in known if operator_of(each) == operator)
    if not overloads:
        close = difflib.get_close_matches(operator, sorted(set(map(operator_of, known))), n=6) or ["none of a name that is close"]
        raise ValueError(f"torch {torch.__version__} has no operator {operator}; there is {', '.join(close)}")
    if name not in known:
        raise ValueError(f"{operator} has no overload {overload or 'default'}; there is {', '.join(overloads)}")
    return overload_named(name)


def _called(func: OpOverload) -> str:
    way = route(func)
    handler = custom_handler(func)
    if handler is not None:
        return f"{way.value}, {_place(handler)}"
    row = row_of(func)
    if way is Route.RECORDED and row is not None and row[0] is not func:
        return f"{way.value}, that of {full_name(row[0])}: its result is then written to {_written(func)}"
    return way.value


def _written(func: OpOverload) -> str:
    return ", ".join(each.name for each in func._schema.arguments if each.alias_info is not None and each.alias_info.is_write)


def _autocast(func: OpOverload) -> str:
    operator = str(func._schema.name)
    choice = AUTOCAST.get(operator)
    if choice is None or func not in autocast.overloads(operator):
        return "in the dtypes it is given"
    return choice.value


def _facts(func: OpOverload) -> Iterator[tuple[str, str]]:
    row, view = row_of(func), VIEWS.get(full_name(func).removeprefix("aten::"))
    if row is not None:
        yield from _row(row[1])
    if view is not None:
        yield "view", f"read by {_place(view.read)}, written by {_place(view.write)}"
    declared = UNLOWERED.get(str(func._schema.name))
    if declared is not None and declared.kernel is not None:
        yield "kernel", declared.kernel.value


def _row(spec: OpSpec) -> Iterator[tuple[str, str]]:
    yield "row", spec.name
    yield "lowering", _place(spec.lower)
    yield "scalars", ", ".join(sorted(spec.scalars)) or "none"
    yield "random", _shown(spec.random)
    yield "side effects", _shown(spec.has_side_effects)
    if spec.accepts is not None:
        yield "accepts", f"calls that {_place(spec.accepts)} takes; others go another way"
    if spec.notes:
        yield "notes", spec.notes
    for name, value in spec.facts().items():
        if name != "autocast":
            yield name, _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, frozenset):
        return ", ".join(sorted(map(str, value)))
    return _place(value) if callable(value) else str(value)


def _place(function: Callable[..., Any]) -> str:
    """Module and name of what a function is made of, and the file and line of the innermost code here."""
    inner: Any = inspect.unwrap(function)
    here: Any = inspect.unwrap(function, stop=lambda each: not _is_ours(getattr(each, "__wrapped__", None)))
    name = f"{getattr(inner, '__module__', type(inner).__module__)}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
    code = getattr(here, "__code__", None) or type(here).__call__.__code__
    file = Path(code.co_filename)
    shown = file.relative_to(_SOURCE.parent) if file.is_relative_to(_SOURCE) else file
    return f"{name}, {shown}:{code.co_firstlineno}"


def _is_ours(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and Path(code.co_filename).is_relative_to(_SOURCE)

"""From an aten schema to its calling convention: functional, in-place, out=, view or factory, and its functional counterpart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from xla_core.base.private_torch import OpOverload

# Serves the calls of one overload: (args, kwargs) -> result.
Handler = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class Convention(Enum):
    """The calling conventions of overloads."""

    FUNCTIONAL = "functional"
    MUTATING = "mutating"  # in-place and out=
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class Calling:
    """The calling convention of an overload, from its schema.

    mutated: names of the arguments written to, in schema order.
    fresh: how many leading results are new tensors (the others are the mutated arguments again).
    """

    convention: Convention
    mutated: tuple[str, ...] = ()
    fresh: int = 0


def short_name(func: OpOverload) -> str:
    """`add.Tensor`, or `relu` for the default overload; other namespaces keep theirs."""
    name = full_name(func)
    return name.removeprefix("aten::")


def full_name(func: OpOverload) -> str:
    """`aten::add.Tensor`."""
    schema = func._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def dotted_name(func: OpOverload) -> str:
    """`aten.add.Tensor`, as printed in graphs."""
    return full_name(func).replace("::", ".")


def calling(func: OpOverload) -> Calling:
    """The calling convention of `func`, from the alias annotations of its schema."""
    schema = func._schema
    mutated = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    if mutated:
        fresh = sum(r.alias_info is None for r in schema.returns)
        return Calling(Convention.MUTATING, mutated, fresh)
    if any(r.alias_info is not None for r in schema.returns):
        return Calling(Convention.VIEW)
    return Calling(Convention.FUNCTIONAL)


_OPTIONS = ("dtype", "layout", "device", "pin_memory")


def _types(func: OpOverload, leave_out: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in func._schema.arguments if a.name not in leave_out]


def functional_of(func: OpOverload) -> OpOverload | None:
    """The overload that computes what `func` writes: `add.Tensor` for `add_.Tensor` and `add.out`; None if torch has none."""
    schema = func._schema
    namespace, _, op = schema.name.partition("::")
    outs = tuple(a.name for a in schema.arguments if a.is_out)
    types = _types(func, outs)
    candidates = [op] if outs else []
    stem = op[:-1] if op.endswith("_") and not op.endswith("__") else op
    if op.startswith("__i") and op.endswith("__"):
        stem = f"__{op[3:]}"
    candidates += [stem, f"{stem}_functional", f"{op}_functional"]
    for name in dict.fromkeys(candidates):
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if packet is None:
            continue
        preferred = [schema.overload_name, *packet.overloads()]
        for overload in dict.fromkeys(preferred):
            form = getattr(packet, overload or "default", None)
            if not isinstance(form, OpOverload) or calling(form).convention is not Convention.FUNCTIONAL:
                continue
            # A factory takes a device and a dtype; its out= form takes them from the tensor that it is given.
            if _types(form, ()) == types or (outs and _types(form, _OPTIONS) == types):
                return form
    return None


def is_factory(func: OpOverload) -> bool:
    """Whether `func` makes a tensor from no tensor."""
    arguments = func._schema.arguments
    return any(a.name == "device" for a in arguments) and not any("Tensor" in str(a.type) for a in arguments)

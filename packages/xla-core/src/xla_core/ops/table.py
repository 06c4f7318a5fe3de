"""The op table: one row per functional aten overload, with its lowering to `jax.lax` and the facts the recorder needs.

An author writes the functional form only (`aten.add.Tensor`); in-place, `out=` and view forms follow from the aten schema
(`engine/tensor/schema.py`). Duplicates raise when the family is imported. Names that this torch does not have, because it is too old or
because a newer one took them away, are left out; `absent_operations` lists them, and a test knows for which torch each is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
import torch

from xla_core.base.errors import RegistrationError
from xla_core.base.private_torch import OpOverload
from xla_core.ops.checks import Check, Fault, made

Lowering = Callable[..., Any]
_F = TypeVar("_F", bound=Lowering)


@dataclass(frozen=True, slots=True)
class Context:
    """The context of a lowering: all it may know besides its operands.

    out: shape and *device* dtype of each result that shape inference gave, flattened in order (tensor lists in
        line); None where the operation returns no tensor (a masked gradient). A lowering must return exactly these.
    seed: (2,) uint32 key of this random operation; None for operations that are not `random`.
    checks: what `check` found to test, in order; None where nobody asks.
    """

    out: tuple[jax.ShapeDtypeStruct | None, ...]
    seed: jax.Array | None = None
    checks: list[Check] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return tuple(self._first().shape)

    @property
    def dtype(self) -> np.dtype:
        """Device dtype of the first result."""
        dtype: np.dtype = self._first().dtype
        return dtype

    def check(self, fault: Fault, wrong: jax.Array, value: jax.Array | None = None, *numbers: int) -> None:
        """Let the program raise `fault` if any of `wrong` (booleans) is true, with the largest `value` there and `numbers` in its text."""
        if self.checks is not None and wrong.size:
            self.checks.append(made(fault, wrong, value, numbers))

    def _first(self) -> jax.ShapeDtypeStruct:
        first = self.out[0]
        if first is None:
            raise RegistrationError("this operation's first result is not a tensor: read Context.out instead")
        return first


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One row: a functional overload, its lowering, and how the recorder treats its arguments.

    name: `namespace::op.overload`, for the default overload `namespace::op`.
    lower: called as `lower(context, *args, **kwargs)` with the schema's arguments as the caller gave them: tensors are
        jax arrays of the device dtype, tensor lists are lists of them, absent optionals are left to the defaults.
        `device`, `layout`, `pin_memory` and `memory_format` are removed. dtype arguments stay torch dtypes, but the
        result's dtype is `context.dtype`.
    scalars: names of `Scalar`, `float` or `Scalar[]` arguments that shape nothing but values. Such an argument may arrive
        as a 0-d jax array instead of a Python number (use `scalar(value, dtype)`), so that a value that changes every
        step does not recompile.
    random: the operation draws numbers; `context.seed` is its key.
    accepts: called with the user's arguments when a signature is new; False sends calls of that signature to the CPU.
    notes: a line for the generated table in `docs/ops.md`.
    has_side_effects: it acts on others (a collective): what ran is never computed again, even if later reads need a result that nobody
        holds.
    """

    name: str
    lower: Lowering
    scalars: frozenset[str] = frozenset()
    random: bool = False
    accepts: Callable[..., bool] | None = None
    notes: str = ""
    has_side_effects: bool = False


TABLE: dict[str, OpSpec] = {}
_absent: set[str] = set()


def absent_operations() -> list[str]:
    """The operations of aten that this package has lowerings or rules for and this torch does not have, sorted."""
    return sorted(_absent)


def _find(name: str) -> Any:
    """Look up `namespace::op[.overload]` in torch; None if there is none."""
    qualified, _, overload = name.partition(".")
    namespace, _, op = qualified.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), op, None), overload or "default", None)


def overload_named(name: str) -> OpOverload:
    """The torch overload called `namespace::op[.overload]`; raises RegistrationError when torch has none."""
    found = _find(name)
    if found is None:
        raise RegistrationError(f"torch {torch.__version__} has no operation named {name!r}")
    if not isinstance(found, OpOverload):
        raise RegistrationError(f"{name!r} names no single overload; write namespace::op.overload")
    return found


def overloads_of(name: str) -> list[OpOverload]:
    """All overloads of `aten::<name>`; none, and a line in `absent_operations`, where this torch has no such operation."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        _absent.add(f"aten::{name}")
        return []
    return [getattr(packet, overload) for overload in packet.overloads()]


def register(spec: OpSpec, replace: bool = False) -> OpSpec:
    """Add one row, or put it in the place of one; raises RegistrationError as `register_op`."""
    arguments = _argument_names(spec.name)
    unknown = spec.scalars - arguments
    if unknown:
        raise RegistrationError(f"{spec.name} has no arguments {sorted(unknown)}; it has {sorted(arguments)}")
    if replace:
        TABLE.pop(spec.name, None)
    return _add(spec)


def _argument_names(name: str) -> set[str]:
    return {argument.name for argument in overload_named(name)._schema.arguments}


def _add(spec: OpSpec) -> OpSpec:
    if spec.name in TABLE:
        raise RegistrationError(
            f"{spec.name} is already registered by {TABLE[spec.name].lower.__module__}; replace=True puts another lowering in its place"
        )
    TABLE[spec.name] = spec
    return spec


def op(
    *names: str,
    scalars: tuple[str, ...] = (),
    random: bool = False,
    accepts: Callable[..., bool] | None = None,
    notes: str = "",
) -> Callable[[_F], _F]:
    """Decorator: register a lowering for aten overloads (`"add.Tensor"`, or `"relu"` for the default overload).

    `scalars` is given once for all names; each row keeps those that its own schema has. There is no row for a name of aten that
    this torch does not have.
    """

    def add(lower: _F) -> _F:
        for short in names:
            name = short if "::" in short else f"aten::{short}"
            if name.startswith("aten::") and _find(name) is None:
                _absent.add(name)
                continue
            _add(OpSpec(name, lower, frozenset(scalars) & _argument_names(name), random, accepts, notes))
        return lower

    return add


def scalar(value: Any, dtype: np.dtype) -> jax.Array:
    """A `Scalar` argument (Python number or 0-d array) as a 0-d array of `dtype`."""
    if isinstance(value, (bool, int, float, complex)):
        return jax.numpy.asarray(np.asarray(value).astype(dtype))
    return jax.lax.convert_element_type(value, dtype)

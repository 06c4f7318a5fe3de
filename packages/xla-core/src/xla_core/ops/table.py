"""The op table: one row per functional aten overload, with its lowering to `jax.lax` and the facts the recorder needs.

An author writes the functional form only (`aten.add.Tensor`); in-place, `out=` and view forms follow from the aten schema
(`frontend/schema.py`). Duplicates and names that torch does not know raise when the family is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
import torch

from xla_core._compat import OpOverload
from xla_core.errors import RegistrationError

Lowering = Callable[..., Any]
_F = TypeVar("_F", bound=Lowering)


@dataclass(frozen=True, slots=True)
class Context:
    """What a lowering may know besides its operands.

    out: shape and *device* dtype of each result that shape inference promised, flattened in order (tensor lists in
        line); None where the operation returns no tensor (a masked gradient). A lowering must return exactly these.
    seed: (2,) uint32 key of this random operation; None for operations that are not `random`.
    """

    out: tuple[jax.ShapeDtypeStruct | None, ...]
    seed: jax.Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return tuple(self._first().shape)

    @property
    def dtype(self) -> np.dtype:
        """Device dtype of the first result."""
        dtype: np.dtype = self._first().dtype
        return dtype

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
    once: it acts on others (a collective): what ran is never computed again, even if later reads need a result that nobody holds.
    """

    name: str
    lower: Lowering
    scalars: frozenset[str] = frozenset()
    random: bool = False
    accepts: Callable[..., bool] | None = None
    notes: str = ""
    once: bool = False


TABLE: dict[str, OpSpec] = {}
_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def overload_named(name: str) -> OpOverload:
    """The torch overload called `namespace::op[.overload]`; raises RegistrationError when torch has none."""
    qualified, _, overload = name.partition(".")
    namespace, _, op = qualified.partition("::")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), op), overload or "default")
    except AttributeError:
        raise RegistrationError(f"torch {torch.__version__} has no operation named {name!r}") from None
    if not isinstance(found, OpOverload):
        raise RegistrationError(f"{name!r} names no single overload; write namespace::op.overload")
    return found


def register(spec: OpSpec) -> OpSpec:
    """Add one row; raises RegistrationError for a duplicate, an unknown name or a scalar the schema does not have."""
    arguments = _argument_names(spec.name)
    unknown = spec.scalars - arguments
    if unknown:
        raise RegistrationError(f"{spec.name} has no arguments {sorted(unknown)}; it has {sorted(arguments)}")
    return _add(spec)


def _argument_names(name: str) -> set[str]:
    return {argument.name for argument in overload_named(name)._schema.arguments}


def _add(spec: OpSpec) -> OpSpec:
    if spec.name in TABLE:
        raise RegistrationError(f"{spec.name} is already registered by {TABLE[spec.name].lower.__module__}")
    TABLE[spec.name] = spec
    return spec


def op(
    *names: str,
    scalars: tuple[str, ...] = (),
    random: bool = False,
    accepts: Callable[..., bool] | None = None,
    since: tuple[int, int] | None = None,
    notes: str = "",
) -> Callable[[_F], _F]:
    """Decorator: register a lowering for aten overloads (`"add.Tensor"`, or `"relu"` for the default overload).

    `scalars` is given once for all names; each row keeps those that its own schema has. `since`: the first torch that has the
    operation, where that is newer than the oldest one supported; there is no row for it on an older torch.
    """

    def add(lower: _F) -> _F:
        if since is not None and _TORCH < since:
            return lower
        for short in names:
            name = short if "::" in short else f"aten::{short}"
            _add(OpSpec(name, lower, frozenset(scalars) & _argument_names(name), random, accepts, notes))
        return lower

    return add


def scalar(value: Any, dtype: np.dtype) -> jax.Array:
    """A `Scalar` argument (Python number or 0-d array) as a 0-d array of `dtype`."""
    if isinstance(value, (bool, int, float, complex)):
        return jax.numpy.asarray(np.asarray(value).astype(dtype))
    return jax.lax.convert_element_type(value, dtype)

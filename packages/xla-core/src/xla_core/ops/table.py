"""The op table: one row per functional aten overload, with its lowering to `jax.lax` and all facts that the engine goes by.

An author writes the functional form only (`aten.add.Tensor`); in-place, `out=` and view forms follow from the aten schema
(`engine/tensor/schema.py`). Operators without a lowering that the engine knows something of are declared by `without_lowering`.
Duplicates and wrong facts raise when the family is imported. Names that this torch does not have, because it is too old or because a newer
one took them away, are left out; `absent_operations` lists them, and a test knows for which torch each is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, Unpack, cast

import jax
import numpy as np
import torch

from xla_core.base.errors import RegistrationError
from xla_core.base.private_torch import OpOverload
from xla_core.ops.checks import Check, Fault, made, name_fault
from xla_core.ops.facts import Autocast, Facts, TorchKernel, check_autocast, check_facts

Lowering = Callable[..., Any]
_F = TypeVar("_F", bound=Lowering)


@dataclass(frozen=True, slots=True)
class Context:
    """The context of a lowering: all it may know besides its operands.

    out: shape and *device* dtype of each result that shape inference gave, flattened in order (tensor lists in
        line); None where the operation returns no tensor (a masked gradient). A lowering must return exactly these.
    seed: (2,) uint32 key of this random operation; None for operations that are not `random`.
    checks: what `check` found to test, in order; None where nobody asks.
    platform: what the program is compiled for, as `jax.Device.platform`: `cpu`, `gpu`, `tpu`, or the name of a plugin.
    mesh: the devices that run it, in its order, where it runs on more than one.
    model: of these devices, as jax describes it to kernels; None where the program is for any of the platform.
    """

    out: tuple[jax.ShapeDtypeStruct | None, ...]
    seed: jax.Array | None = None
    checks: list[Check] | None = None
    platform: str = "cpu"
    mesh: jax.sharding.Mesh | None = None
    model: jax.sharding.AbstractDevice | None = None

    @property
    def first(self) -> jax.ShapeDtypeStruct:
        """Shape and device dtype of the first result. Raises RegistrationError if that is no tensor."""
        first = self.out[0]
        if first is None:
            raise RegistrationError("this operation's first result is not a tensor: read Context.out instead")
        return first

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return tuple(self.first.shape)

    @property
    def dtype(self) -> np.dtype:
        """Device dtype of the first result."""
        dtype: np.dtype = self.first.dtype
        return dtype

    @property
    def kind(self) -> str:
        """The name of the devices' model, as `jax.Device.device_kind`; empty where that is open."""
        return "" if self.model is None else str(self.model.device_kind)

    def alone(self, inferred: jax.ShapeDtypeStruct | None) -> Context:
        """The context of an operation inside of this one that gives one result: of the same program, without seed and checks."""
        return Context((inferred,), platform=self.platform, mesh=self.mesh, model=self.model)

    def check(self, fault: Fault | str, wrong: jax.Array, value: jax.Array | None = None, *numbers: int) -> None:
        """Let the program raise `fault` if any of `wrong` (booleans) is true, with the largest `value` there and `numbers` in its text.

        fault: one of torch's own, or a text of the row's `faults`, for a RuntimeError. Raises RegistrationError for a text that no row has.
        """
        if self.checks is not None and wrong.size:
            self.checks.append(made(fault, wrong, value, numbers, self.platform))


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
    autocast: the precision in which autocast runs the operator, in all overloads that make new tensors; None for the dtypes of the call.
    shapes: called with the arguments, meta tensors for tensors, gives meta tensors like the results, or raises what is wrong with the call;
        where torch's own meta function is missing, or promises what the CPU does not do.
    beyond_cpu: dtypes of the first argument, or of a tensor in it, that torch computes on accelerators and not on the CPU, which is not
        asked about them then.
    overlapping_writes: torch lets the in-place form write to views in which one element stands several times, which it forbids elsewhere.
    fills: gives of the call's arguments the number that the new tensor is full of; it may turn out to be the state of an optimizer.
    keeps_sharding: the result is sharded as the first argument (SPMD), as that of torch's `*_like`.
    adds_gradients: autograd sums up gradients by the in-place form, so that added to zeros the gradient itself is the sum.
    on_lists: optimizers call it on lists of tensors. Its numbers are inputs of the program from the start, not at their second value, and
        the in-place form counts its writes for autograd, which torch leaves to kernels of such operators.
    only_casts: it changes nothing but the dtype, so that backward passes compute it again rather than keep it.
    shown_as: its name in graphs as text, `namespace::op`; empty for its own.
    faults: texts of the RuntimeErrors that the lowering makes by `context.check`; `{value}` in a text stands for the largest wrong value,
        `{0}` and `{1}` for the numbers of the check.
    """

    name: str
    lower: Lowering
    scalars: frozenset[str] = frozenset()
    random: bool = False
    accepts: Callable[..., bool] | None = None
    notes: str = ""
    has_side_effects: bool = False
    autocast: Autocast | None = None
    shapes: Callable[..., Any] | None = None
    beyond_cpu: frozenset[torch.dtype] = frozenset()
    overlapping_writes: bool = False
    fills: Callable[[tuple[Any, ...]], Any] | None = None
    keeps_sharding: bool = False
    adds_gradients: bool = False
    on_lists: bool = False
    only_casts: bool = False
    shown_as: str = ""
    faults: tuple[str, ...] = ()

    def facts(self) -> Facts:
        """The facts that `op` may say, without those that are left at their defaults."""
        return cast(Facts, {name: value for name in Facts.__annotations__ if (value := getattr(self, name))})


@dataclass(frozen=True, slots=True)
class Unlowered:
    """The facts of an operator `namespace::op` without a lowering. They hold for its overloads that make new tensors.

    autocast: the precision in which autocast runs it. kernel: how torch's own kernels serve it; None where nothing is special.
    """

    name: str
    autocast: Autocast | None = None
    kernel: TorchKernel | None = None


TABLE: dict[str, OpSpec] = {}
UNLOWERED: dict[str, Unlowered] = {}
AUTOCAST: dict[str, Autocast] = {}  # by operator, `aten::add`: of rows and of operators without one
_absent: set[str] = set()
_listeners: list[Callable[[OpSpec, bool], None]] = []


def absent_operations() -> list[str]:
    """The operations of aten that this package has lowerings or rules for and this torch does not have, sorted."""
    return sorted(_absent)


@cache
def _find_in_aten(name: str) -> Any:
    return _look_up(name)


def _look_up(name: str) -> Any:
    qualified, _, overload = name.partition(".")
    namespace, _, op = qualified.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), op, None), overload or "default", None)


def _find(name: str) -> Any:
    """Look up `namespace::op[.overload]` in torch; None if there is none."""
    return _find_in_aten(name) if name.startswith("aten::") else _look_up(name)  # others may be defined anew


def overload_named(name: str) -> OpOverload:
    """The torch overload called `namespace::op[.overload]`; raises RegistrationError when torch has none."""
    return _checked(name, _find(name))


def _checked(name: str, overload: Any) -> OpOverload:
    if overload is None:
        raise RegistrationError(f"torch {torch.__version__} has no operation named {name!r}")
    if not isinstance(overload, OpOverload):
        raise RegistrationError(f"{name!r} names no single overload; write namespace::op.overload")
    return overload


def overloads_of(name: str) -> list[OpOverload]:
    """All overloads of `aten::<name>`; none, and a line in `absent_operations`, where this torch has no such operation."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        _absent.add(f"aten::{name}")
        return []
    return [getattr(packet, overload) for overload in packet.overloads()]


def on_register(listener: Callable[[OpSpec, bool], None]) -> None:
    """Call `listener(row, replaces)` after each row that is added from now on; replaces: it stands in the place of another."""
    _listeners.append(listener)


def register_op(spec: OpSpec, replace: bool = False) -> OpSpec:
    """Add a row to the op table, also when the operation was already called and ran on the CPU.

    replace: a row of that name may be there, and is no longer used: for the cell of a notebook that runs again. What was recorded
    with it stays as it was.
    Raises RegistrationError for a name that is taken or that torch does not know, and for facts that the operation cannot have.
    """
    func = overload_named(spec.name)
    if unknown := spec.scalars - (arguments := _argument_names(func)):
        raise RegistrationError(f"{spec.name} has no arguments {sorted(unknown)}; it has {sorted(arguments)}")
    return _add(spec, func, spec.facts(), replace)


def _add(spec: OpSpec, func: OpOverload, facts: Facts, replace: bool = False) -> OpSpec:
    if facts:
        check_facts(func, facts)
    if spec.autocast is not None:
        check_autocast(spec.name, spec.autocast)
    known = TABLE.get(spec.name)
    if known is not None and not replace:
        raise RegistrationError(
            f"{spec.name} is already registered by {known.lower.__module__}; replace=True puts another lowering in its place"
        )
    if spec.autocast is not None:
        _choose_autocast(operator_of(spec.name), spec.autocast)
    for text in spec.faults:
        name_fault(text)
    TABLE[spec.name] = spec
    for listener in _listeners:
        listener(spec, known is not None)
    return spec


def _argument_names(func: OpOverload) -> frozenset[str]:
    return frozenset(argument.name for argument in func._schema.arguments)


def operator_of(name: str) -> str:
    """`namespace::op` of an overload's name."""
    return name.partition(".")[0]


def _choose_autocast(operator: str, autocast: Autocast) -> None:
    """Say it for all overloads of the operator, which one kernel of autocast serves."""
    known = AUTOCAST.setdefault(operator, autocast)
    if known is not autocast:
        raise RegistrationError(f"{operator} runs under autocast {known.value}: all its overloads do, got Autocast.{autocast.name} for one")


def kernel_of(operator: str) -> TorchKernel | None:
    """How torch's own kernels serve `namespace::op`, as it was declared."""
    declared = UNLOWERED.get(operator)
    return None if declared is None else declared.kernel


def without_lowering(*names: str, autocast: Autocast | None = None, kernel: TorchKernel | None = None) -> None:
    """Declare facts of aten operators (`"einsum"`) that have no lowering: what torch makes of other operators, or handlers serve.

    Names that this torch does not have are left out. Raises RegistrationError for an operator that has a row, which says its facts itself,
    for one that was declared before, and for what is no Autocast or TorchKernel.
    """
    if kernel is not None and not isinstance(kernel, TorchKernel):
        raise RegistrationError(f"kernel is one of {', '.join(f'TorchKernel.{each.name}' for each in TorchKernel)}, got {kernel!r}")
    if autocast is not None:
        check_autocast(f"aten::{names[0]}", autocast)
    elif kernel is None:
        raise RegistrationError(f"{', '.join(names)}: say autocast= or kernel=, without them there is nothing to declare")
    for name in (f"aten::{short}" for short in names):
        overloads = overloads_of(name.removeprefix("aten::"))
        row = next((func.name() for func in overloads if func.name() in TABLE), None)
        if row is not None:
            raise RegistrationError(f"{name} has a lowering, {row}: declare its facts there, by @op")
        if name in UNLOWERED:
            raise RegistrationError(f"{name} is declared already: give all its facts at once")
        if overloads:
            if autocast is not None:
                _choose_autocast(name, autocast)
            UNLOWERED[name] = Unlowered(name, autocast, kernel)


def op(
    *names: str,
    scalars: tuple[str, ...] = (),
    random: bool = False,
    accepts: Callable[..., bool] | None = None,
    notes: str = "",
    **facts: Unpack[Facts],
) -> Callable[[_F], _F]:
    """Decorator: register a lowering for aten overloads (`"add.Tensor"`, or `"relu"` for the default overload).

    `scalars` is given once for all names; each row keeps those that its own schema has. `facts`, which all names have, are described at
    `OpSpec`. There is no row for a name of aten that this torch does not have.
    """

    def add(lower: _F) -> _F:
        for short in names:
            name = short if "::" in short else f"aten::{short}"
            func = _find(name)
            if func is None and name.startswith("aten::"):
                _absent.add(name)
                continue
            func = _checked(name, func)
            named = frozenset(scalars) & _argument_names(func) if scalars else frozenset()
            _add(OpSpec(name, lower, named, random, accepts, notes, **facts), func, facts)
        return lower

    return add


def scalar(value: Any, dtype: np.dtype) -> jax.Array:
    """A `Scalar` argument (Python number or 0-d array) as a 0-d array of `dtype`."""
    if isinstance(value, (bool, int, float, complex)):
        return jax.numpy.asarray(np.asarray(value).astype(dtype))
    return jax.lax.convert_element_type(value, dtype)

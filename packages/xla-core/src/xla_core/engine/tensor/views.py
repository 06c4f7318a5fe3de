"""Views: a base value and a chain of steps, described once for all bases of one aval.

A `ViewSpec` describes one view of such bases: what torch's own strides would be, how to read it,
how to write through it. Equal layouts share a spec.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from xla_core.base.private_torch import OpOverload, hidden_from_modes
from xla_core.engine.graph.aval import Aval, aval_of, dense_strides
from xla_core.engine.graph.signature import PLACEHOLDER, Signature
from xla_core.engine.runtime.source_location import user_line
from xla_core.engine.tensor.encode import remember
from xla_core.engine.tensor.plain import ours
from xla_core.engine.tensor.schema import Handler
from xla_core.engine.tensor.tensor import XLATensor, set_data, view_of
from xla_core.ops.shape.view_steps import ReadView, ViewStep, WriteView, followed, select_step, slice_step
from xla_core.ops.shape.views import VIEWS


class ViewSpec:
    """A view of any base of one Aval.

    aval: of the value that reads it, and of a copy, whose elements follow each other in memory; shown: with the view's own strides.
    strides, start: torch's own strides and storage offset, in elements; meta: a meta tensor with exactly that layout.
    read, write: recorded operations `(base, *offsets) -> view` and `(base, new view, *write_offsets) -> new base`, the same for all
    views that differ in where their slices begin; a write may take other steps (`writes`).
    lazy: torch's conjugate or negative bit is set on it.
    overlaps: several of its elements are one element of the base, so that writing is refused as on the CPU.
    """

    __slots__ = (
        "__weakref__",
        "aval",
        "base",
        "lazy",
        "meta",
        "offsets",
        "overlaps",
        "read",
        "shown",
        "start",
        "steps",
        "strides",
        "write",
        "write_offsets",
    )

    def __init__(
        self,
        base: Aval,
        steps: tuple[ViewStep, ...],
        meta: torch.Tensor,
        writes: tuple[ViewStep, ...] | None = None,
    ) -> None:
        writes = steps if writes is None else writes
        self.base = base
        self.steps = steps
        self.meta = meta
        shape, self.strides = tuple(meta.shape), tuple(meta.stride())
        self.aval = aval_of(shape, meta.dtype, base.manual, dense_strides(meta))
        self.shown = aval_of(shape, meta.dtype, base.manual, self.strides)
        self.start = meta.storage_offset()
        self.overlaps = meta.numel() > 0 and any(size > 1 and stride == 0 for size, stride in zip(meta.shape, meta.stride(), strict=True))
        self.lazy = meta.is_conj() or meta.is_neg()

        self.offsets = _offsets(steps)
        self.write_offsets = _offsets(writes)
        self.read = _once(base, steps, False, self.aval)
        self.write = _once(base, writes, True, base)


def _offsets(steps: tuple[ViewStep, ...]) -> tuple[int, ...]:
    return tuple(step.offset for step in steps if step.offset is not None)


# Reads and writes by base, steps without their offsets, whether it writes, and the aval of the result.
_OPERATIONS: weakref.WeakValueDictionary[tuple[Any, ...], Signature] = weakref.WeakValueDictionary()


def _once(base: Aval, steps: tuple[ViewStep, ...], writes: bool, result: Aval) -> Signature:
    """The operation that reads, or writes, through these steps: the same one wherever their slices begin."""
    chain = _chain(steps)
    key = (base, chain, writes, result)
    existing = _OPERATIONS.get(key)
    if existing is not None:
        return existing

    # The chain itself is part of the operations' text, which is their identity on disk.
    name, operands = (f"xla.write{chain}", 2) if writes else (f"xla.read{chain}", 1)
    lower = WriteView(steps) if writes else ReadView(steps)
    signature = Signature(name, lower, (PLACEHOLDER,) * (operands + len(_offsets(steps))), {}, (result,), line=user_line())
    # Two threads that make it at once get the same one: programs compare operations by identity.
    return _OPERATIONS.setdefault(key, signature)


def relaid(value: Aval, result: Aval) -> Signature:
    """The operation that gives a value with other strides."""
    return _once(value, (), False, result)


def _chain(steps: tuple[ViewStep, ...]) -> str:
    return "".join(f".{step.name}{[*step.args, *_length(step)]}" for step in steps)


def _length(step: ViewStep) -> tuple[int, ...]:
    """The length of a slice, which is not among the arguments of its step."""
    return (step.shape[step.args[0]],) if step.name == "slice.Tensor" else ()


# One spec for each layout, whatever the steps: t().t() is the base again. Handlers of views keep the specs that they use often alive.
_LAYOUTS: weakref.WeakValueDictionary[tuple[Any, ...], ViewSpec] = weakref.WeakValueDictionary()


def root(base: Aval) -> ViewSpec:
    """The view that shows all of a base."""
    if base.root is None:
        with hidden_from_modes(all_of_them=True):  # specs outlive the modes
            whole_base = ViewSpec(base, (), base.meta)
        base.root = _LAYOUTS.setdefault(_layout(base, whole_base.meta), whole_base)
    spec: ViewSpec = base.root
    return spec


def _layout(base: Aval, meta: torch.Tensor) -> tuple[Any, ...]:
    return (base, tuple(meta.shape), tuple(meta.stride()), meta.storage_offset(), meta.dtype, meta.is_conj(), meta.is_neg())


def child(parent: ViewSpec, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ViewSpec | list[ViewSpec]:
    """The view (or views, for split and unbind) that `func(parent, *args)` gives.

    Raises what torch raises for arguments that make no view.
    """
    args, kwargs = _plain(args), {name: value for name, value in kwargs.items() if name != "implicit"}
    with hidden_from_modes(all_of_them=True):  # modes of torch's tracing take no other tensors than their own
        return _derive(parent, func, (*args, *_keywords(func, len(args), kwargs)))


def _plain(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(tuple(int(item) for item in arg) if isinstance(arg, (list, tuple)) else arg for arg in args)


def _keywords(func: OpOverload, count: int, kwargs: dict[str, Any]) -> list[Any]:
    """Keyword arguments in the schema's places, defaults in between."""
    if not kwargs:
        return []
    names = func._schema.arguments[count + 1 :]
    last = max(index for index, argument in enumerate(names) if argument.name in kwargs)
    return list(_plain(tuple(kwargs.get(argument.name, argument.default_value) for argument in names[: last + 1])))


def _derive(parent: ViewSpec, func: OpOverload, args: tuple[Any, ...]) -> ViewSpec | list[ViewSpec]:
    name = func._schema.name.removeprefix("aten::") + (f".{func._schema.overload_name}" if func._schema.overload_name else "")
    metas = func(parent.meta, *args)
    if isinstance(metas, torch.Tensor):
        return _spec(parent, _step(parent, name, args, metas), metas)
    return [_spec(parent, _part(parent, name, args, index, metas), meta) for index, meta in enumerate(metas)]


def _step(parent: ViewSpec, name: str, args: tuple[Any, ...], meta: torch.Tensor) -> ViewStep:
    if name == "select.int":
        return select_step(parent.aval.shape, *args)
    if name == "slice.Tensor":
        return slice_step(parent.aval.shape, *args)
    return ViewStep(name, args, tuple(meta.shape))


def _part(parent: ViewSpec, name: str, args: tuple[Any, ...], index: int, metas: Any) -> ViewStep:
    """Result `number` of a view with several results, as a view with one."""
    if name == "unbind.int":
        return select_step(parent.aval.shape, args[0] if args else 0, index)
    if name not in ("split.Tensor", "split_with_sizes"):
        return ViewStep(name, args, tuple(metas[index].shape))
    dim = args[1] if len(args) > 1 else 0
    start = sum(meta.shape[dim] for meta in metas[:index])
    return slice_step(parent.aval.shape, dim, start, start + metas[index].shape[dim])


def _spec(parent: ViewSpec, step: ViewStep, meta: torch.Tensor) -> ViewSpec:
    if step.name not in VIEWS:  # of an operator that others have made
        steps = _from_base(parent.base, meta)
        return _LAYOUTS.setdefault(_layout(parent.base, meta), ViewSpec(parent.base, steps, meta, steps))
    steps = followed(parent.base.shape, parent.steps, step)
    if VIEWS[step.name].is_whole:
        return parent
    if step.name == "as_strided":
        if any(stride < 0 for stride in step.args[1]):  # meta tensors of torch 2.10 take them for positive ones
            raise RuntimeError(f"as_strided: Negative strides are not supported at the moment, got strides: {list(step.args[1])}")
        steps = _from_base(parent.base, meta)
    # Written step by step, old elements that overlap the new ones could win.
    writes = _from_base(parent.base, meta) if any(VIEWS[earlier.name].overlaps for earlier in parent.steps) else steps
    return _LAYOUTS.setdefault(_layout(parent.base, meta), ViewSpec(parent.base, steps, meta, writes))


def _from_base(base: Aval, meta: torch.Tensor) -> tuple[ViewStep, ...]:
    """The steps of an as_strided: its offsets count from the storage, not from the view that it is called on."""
    _check_bounds(base, meta)
    steps: list[ViewStep] = []
    if base.strides is not None:
        order = sorted(range(len(base.shape)), key=lambda dim: -base.strides[dim])  # type: ignore[index]
        steps.append(ViewStep("permute", (tuple(order),), tuple(base.shape[dim] for dim in order)))
    if meta.dtype != base.dtype:
        count = math.prod(base.shape) * base.dtype.itemsize // meta.dtype.itemsize
        kept = count * meta.dtype.itemsize // base.dtype.itemsize
        flat = (math.prod(base.shape),)
        steps.append(ViewStep("view", (flat,), flat))
        steps.append(slice_step(flat, 0, 0, kept))
        steps.append(ViewStep("view.dtype", (meta.dtype,), (count,)))
    shape = tuple(meta.shape)
    steps.append(ViewStep("as_strided", (shape, tuple(meta.stride()), meta.storage_offset()), shape))
    if meta.is_conj():
        steps.append(ViewStep("_conj", (), shape))
    if meta.is_neg():
        steps.append(ViewStep("_neg_view", (), shape))
    return tuple(steps)


def _check_bounds(base: Aval, meta: torch.Tensor) -> None:
    """Raise what the CPU raises for a layout that reaches past the storage; meta tensors do not check it."""
    if meta.numel() == 0:
        return
    size, available = meta.dtype.itemsize, math.prod(base.shape) * base.dtype.itemsize
    last = meta.storage_offset() + sum((length - 1) * stride for length, stride in zip(meta.shape, meta.stride(), strict=True))
    if (last + 1) * size > available:
        raise RuntimeError(
            f"setStorage: sizes {list(meta.shape)}, strides {list(meta.stride())}, storage offset {meta.storage_offset()}, "
            f"and itemsize {size} requiring a storage size of {(last + 1) * size} are out of bounds for storage of size {available}"
        )


def handler(func: OpOverload) -> Handler:
    """The handler of a view: it records nothing, and only adds a step to the chain."""
    specs: dict[Any, Any] = {}

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if type(tensor) is not XLATensor:
            tensor = ours(tensor)
        storage = tensor._storage
        parent = tensor._view or storage.value.aval.root or root(storage.value.aval)
        key = (parent, *[tuple(arg) if type(arg) is list else arg for arg in args[1:]])
        spec = None if kwargs else specs.get(key)
        if spec is None:
            spec = child(parent, func, args[1:], kwargs)
            if not kwargs:
                remember(specs, key, spec)
        if type(spec) is list:
            return [view_of(storage, part, tensor) for part in spec]
        return view_of(storage, spec, tensor)

    return run


def inplace_handler(func: OpOverload) -> Handler:
    """`t_`, `squeeze_` and the like: the tensor itself becomes the view."""
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::")[:-1])
    types = [str(argument.type) for argument in func._schema.arguments]
    overloads = [getattr(packet, name) for name in packet.overloads()]
    overload = next(candidate for candidate in overloads if [str(argument.type) for argument in candidate._schema.arguments] == types)

    become = handler(overload)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        set_data(args[0], become(args, kwargs))
        return args[0]

    return run

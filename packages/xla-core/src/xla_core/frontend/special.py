"""Overloads that are more than one lowering: copies and moves, reads, aliases, metadata changes, devices elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from xla_core import metrics
from xla_core._compat import OpOverload, tree_map
from xla_core.errors import DeviceMismatchError, UnsupportedOperationError
from xla_core.frontend import attention, loading
from xla_core.frontend.plain import mixed, ours
from xla_core.frontend.refusals import meta_of
from xla_core.frontend.tensor import XLATensor, set_data, view_of, wrap
from xla_core.frontend.values import cpu_copies, value_of
from xla_core.ir.aval import aval_of
from xla_core.ir.tape import Recorder, Value, blank_value, buffer_value
from xla_core.ops.table import overload_named
from xla_core.runtime.client import recorder_of
from xla_core.runtime.layouts import follow
from xla_core.runtime.sync import compute
from xla_core.runtime.transfer import put, upload

Plan = Callable[[tuple[Any, ...], dict[str, Any]], Any]
aten = torch.ops.aten


def alias(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same data under another tensor: detach, alias, lift_fresh."""
    tensor = args[0]
    same = view_of(tensor._storage, tensor._view, tensor)
    same._seen = tensor._seen
    return same


def clone(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Independent data. Values are immutable, so the copy shares the value until one side is written to."""
    if "memory_format" in kwargs:
        _check_format(args[0], kwargs["memory_format"])
    return in_image_of(args[0], wrap(value_of(args[0])))


def _check_format(tensor: torch.Tensor, memory_format: torch.memory_format | None) -> None:
    """Raise torch's error if a tensor has not the dimensions of a memory format: all look contiguous here, whatever it is."""
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        torch.empty(tensor.shape, memory_format=memory_format, device="meta")


def in_image_of(source: XLATensor, tensor: XLATensor) -> XLATensor:
    """A tensor just made like another: it lies over several devices as that one does (SPMD)."""
    if source._storage.annotations is not None and source._view is None:
        follow(source._storage, tensor._storage)
    return tensor


def item(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A Python number from a one-element tensor: a value read."""
    metrics.counter_add("aten::_local_scalar_dense")
    return cpu_copies(args[:1])[0].item()


def equal(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether two tensors have the same shape and values."""
    left, right = args
    for side in (left, right):
        if type(side) is not XLATensor:
            raise mixed(side)
    if left.shape != right.shape:
        return False
    return bool(item((torch.eq(left, right).all(),), {}))


def allclose(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether two tensors are equal within tolerances: a value read."""
    close = torch.isclose(*args, **kwargs).all()
    return bool(cpu_copies([close])[0].item())  # type: ignore[list-item]


def linalg_check_errors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise torch's LinAlgError if a factorisation failed: a value read of its `info`, as on every device."""
    aten._linalg_check_errors(cpu_copies(args[:1])[0], *args[1:], **kwargs)


def pin_memory(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`_pin_memory` of a tensor on the device: torch's own error."""
    raise RuntimeError(f"cannot pin '{args[0].type()}' only dense CPU tensors can be pinned")


def is_same_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether two tensors have the same shape."""
    return bool(args[0].shape == args[1].shape)


def has_same_storage_numel(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the data behind two tensors has as many elements (forward mode asks)."""
    left, right = (math.prod(arg._storage.value.aval.shape) if type(arg) is XLATensor else arg.numel() for arg in args)
    return left == right


def moved(value: Value, recorder: Recorder) -> Value:
    """`value` on another xla device: computed, then copied from device to device."""
    if value.recorder is recorder:
        return value
    compute([value])
    if value.buffer is None:
        raise DeviceMismatchError(f"{value.aval} could not be moved to {recorder.device}: it has no value")
    return buffer_value(recorder, value.aval, put(value.buffer, recorder))


def copy_(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`target.copy_(source)` across any pair of devices; shares the value when nothing has to change."""
    from xla_core.frontend.record import write

    target: Any = args[0]
    source: Any = args[1] if isinstance(args[1], torch.Tensor) else torch.tensor(args[1], device="cpu")
    _warn_of_lost_parts(source.dtype, target.dtype)
    if type(target) is not XLATensor:
        return target.copy_(cpu_copies((source,))[0])
    recorder = target._storage.value.recorder
    if type(source) is XLATensor:
        value = moved(value_of(source), recorder)
    else:
        source = _with_shape(source)
        fits = source.shape == target.shape
        value = upload(source.to("cpu", target.dtype if fits else source.dtype), recorder)
    if value.aval.shape == tuple(target.shape) and value.aval.dtype == target.dtype:
        write(target, value)
        return target
    return _recorded_copy((target, wrap(value)), {})


def _with_shape(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; no elements for a parameter of a lazy module, which must not be asked for its shape."""
    return torch.empty(0, dtype=tensor.dtype, device="cpu") if is_lazy(tensor) else tensor


def _warn_of_lost_parts(source: torch.dtype, target: torch.dtype) -> None:
    """torch's own warning for a copy of complex numbers to real ones; it appears once in a process."""
    if source.is_complex and not target.is_complex:
        torch.zeros(1, dtype=source, device="cpu").to(target)


def _recorded_copy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return native_plan(aten.copy_.default)(args, kwargs)


def to_copy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Tensor.to`: another dtype, another device, or both."""
    tensor = args[0]
    dtype = kwargs.get("dtype") or tensor.dtype
    device = kwargs.get("device")
    target = None if device is None else torch.device(device)
    if type(tensor) is not XLATensor:
        return wrap(upload(_with_shape(tensor).to("cpu", dtype), recorder_of(target)))
    if "memory_format" in kwargs:
        _check_format(tensor, kwargs["memory_format"])
    if target is not None and target.type != "xla":
        if target.type == "meta":
            return torch.empty(tensor.shape, dtype=dtype, device="meta")
        return cpu_copies((tensor,))[0].to(device=target, dtype=dtype)
    if dtype != tensor.dtype:
        _warn_of_lost_parts(tensor.dtype, dtype)
        tensor = native_plan(aten._to_copy.default)((tensor,), {"dtype": dtype})
    value = value_of(tensor)
    return in_image_of(args[0], wrap(value if target is None or target.index is None else moved(value, recorder_of(target))))


def copy_from(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`_copy_from(self, dst)`: how torch moves data where it does not call copy_."""
    return copy_((args[1], args[0]), {})


def set_source(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`target.set_(source)`: the target becomes another name of the source's data."""
    source = ours(args[1])
    set_data(ours(args[0]), view_of(source._storage, source._view))
    return args[0]


def resize_(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.resize_(shape)`: keeps the leading elements; new ones are zero."""
    tensor, shape = args[0], tuple(args[1])
    if tuple(tensor.shape) == shape:
        return tensor
    if any(size < 0 for size in shape):
        raise RuntimeError(f"resize_: sizes cannot be negative, found {list(shape)}")
    flat = tensor.detach().clone().view(-1)  # below autograd only what is no composite can be called
    wanted = math.prod(shape)
    flat = torch.cat([flat, flat.new_zeros(max(wanted - flat.numel(), 0))])
    set_data(tensor, flat[:wanted].view(shape).clone())
    return tensor


def resize_as_(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.resize_as_(template)`."""
    return resize_((args[0], args[1].shape), {})


def inplace_view(func: OpOverload) -> Plan:
    """`t_`, `squeeze_` and the like: the tensor itself becomes the view."""
    packet = getattr(aten, func._schema.name.removeprefix("aten::")[:-1])
    wanted = [str(argument.type) for argument in func._schema.arguments]
    overloads = [getattr(packet, name) for name in packet.overloads()]
    overload = next(one for one in overloads if [str(argument.type) for argument in one._schema.arguments] == wanted)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from xla_core.frontend.dispatch import view

        set_data(args[0], view(overload)(args, kwargs))
        return args[0]

    return run


_native: dict[OpOverload, Plan] = {}


def native_plan(func: OpOverload) -> Plan:
    """The recording plan of an overload that is also handled here."""
    plan = _native.get(func)
    if plan is None:
        from xla_core.frontend.dispatch import recording_plan

        plan = _native[func] = recording_plan(func)
    return plan


def batch_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`native_batch_norm`: its schema hides that it updates the running statistics, so the functional form is recorded."""
    names = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    mean, variance, training = given["running_mean"], given["running_var"], given["training"]
    if (mean is None) != (variance is None):
        raise ValueError("batch_norm: running_mean and running_var are given both or neither, got one of them")
    if mean is None:
        return aten._native_batch_norm_legit.no_stats(
            given["input"], given["weight"], given["bias"], training, given["momentum"], given["eps"]
        )
    if not training:  # saves nothing
        return aten._native_batch_norm_legit_no_training.default(*[given[name] for name in names if name != "training"])
    *results, new_mean, new_variance = aten._native_batch_norm_legit_functional.default(*[given[name] for name in names])
    mean.copy_(new_mean)
    variance.copy_(new_variance)
    return tuple(results)


def blank(func: OpOverload) -> Plan:
    """`empty` and its kin: a tensor without values, which costs nothing if it is overwritten first (as every upload does)."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = args[0] if type(args[0]) is XLATensor else None
        device = kwargs.get("device")
        target = None if device is None else torch.device(device)
        if target is not None and target.type != "xla":
            return func(*[_like(item, target) for item in args], **kwargs)
        if source is not None and (target is None or target.index is None):
            recorder = source._storage.value.recorder
        else:
            recorder = recorder_of(target)
        placed = {**kwargs, "device": torch.device("meta"), "pin_memory": None}
        meta = func(*tree_map(meta_of, args), **{name: value for name, value in placed.items() if value is not None})
        made = wrap(blank_value(recorder, aval_of(tuple(meta.shape), meta.dtype)))
        return made if source is None else in_image_of(source, made)

    return run


def _like(item: Any, device: torch.device) -> Any:
    return torch.empty(item.shape, dtype=item.dtype, device=device) if type(item) is XLATensor else item


_BLANKS = ("empty.memory_format", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted")
HANDLERS: dict[str, Plan] = {
    "detach": alias,
    "alias": alias,
    "lift_fresh": alias,
    "lift": alias,
    "clone": clone,
    "lift_fresh_copy": clone,
    "alias_copy": clone,
    "detach_copy": clone,
    "_local_scalar_dense": item,
    "_linalg_check_errors": linalg_check_errors,
    "equal": equal,
    "is_same_size": is_same_size,
    "is_pinned": lambda args, kwargs: False,
    "_pin_memory": pin_memory,
    "_has_same_storage_numel": has_same_storage_numel,
    "allclose": allclose,
    "copy_": copy_,
    "_to_copy": to_copy,
    "_copy_from": copy_from,
    "_copy_from_and_resize": copy_from,
    "set_.source_Tensor": set_source,
    "set_.source_Storage": loading.take,
    "set_.source_Storage_storage_offset": loading.take,
    "resize_": resize_,
    "resize_as_": resize_as_,
    "native_batch_norm": batch_norm,
    "_native_batch_norm_legit": batch_norm,
    "scaled_dot_product_attention": lambda args, kwargs: attention.scaled_dot_product_attention(*args, **kwargs),  # in inference mode
    **{name: blank(overload_named(f"aten::{name}")) for name in _BLANKS},
}


def decomposition(func: OpOverload) -> Plan | None:
    """A plan by other recorded operations, for the few overloads where that is as good as a lowering."""
    if torch.Tag.inplace_view in func.tags:
        return inplace_view(func)
    return None


def unsupported(what: str, instead: str) -> UnsupportedOperationError:
    """The error for what cannot be done, with what to do instead."""
    return UnsupportedOperationError(f"{what} is not supported on xla devices: {instead}")

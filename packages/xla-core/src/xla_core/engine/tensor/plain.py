"""Plain tensors, of torch's own types, on an xla device: parameters, which keep type, identity and hooks when they move, and others.

`param.data = xla_tensor` gives the C++ side of `param` the shape, dtype and device of an xla tensor. Its class stays
`nn.Parameter`, so that torch sends its operations to the kernels of the device, not to our subclass. The data is found through torch's
storage object, which tensors in C++ share if they share data: the xla tensor behind is an attribute of it, and follows the data wherever
C++ moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.nn.parameter import Parameter, UninitializedBuffer, UninitializedParameter

from xla_core.base import private_torch
from xla_core.base.errors import DeviceMismatchError
from xla_core.base.private_torch import tree_map
from xla_core.engine.runtime.resharding import any_sharded
from xla_core.engine.tensor.schema import Handler
from xla_core.engine.tensor.storage import saved_parts
from xla_core.engine.tensor.tensor import XLATensor, copy_into, deep_copy, keep_sharding_of, view_of

PLAIN = (torch.Tensor, Parameter)  # the types for which recording has a short way
storage_of: Any = private_torch.cpp_storage
_before_first: Callable[[], None]


def tensor_behind(tensor: Any) -> XLATensor | None:
    """The xla tensor whose data `tensor` shows, itself if it is one; None for anything else."""
    if type(tensor) is XLATensor:
        return tensor
    if not isinstance(tensor, torch.Tensor) or isinstance(tensor, XLATensor) or tensor.device.type != "xla":
        return None
    try:
        if type(tensor) in PLAIN and (behind := getattr(storage_of(tensor), "_behind", None)) is not None:
            return behind  # type: ignore[no-any-return]
        # The class may forbid or redefine the method; a function mode looks the method up by its name, and gets `_untyped_storage`.
        with private_torch.without_torch_function():
            return getattr(storage_of(tensor), "_behind", None)
    except NotImplementedError:  # another wrapper, such as those of function transforms
        return None


def as_xla(item: Any) -> Any:
    """The xla tensor behind a tensor on an xla device; anything else as it is."""
    behind = tensor_behind(item)
    return item if behind is None else behind


def ours(tensor: Any) -> XLATensor:
    """The xla tensor whose data `tensor` shows. Raises DeviceMismatchError for a tensor elsewhere."""
    behind = tensor_behind(tensor)
    if behind is None:
        raise mixed(tensor)
    return behind


def holder_of(tensor: Any) -> XLATensor | None:
    """Like `tensor_behind`, and also gives wrappers that are XLATensors: sharded tensors have the storage and view of the tensor inside."""
    return tensor if isinstance(tensor, XLATensor) else tensor_behind(tensor)


def holder(tensor: Any) -> XLATensor:
    """Like `holder_of`. Raises DeviceMismatchError for a tensor elsewhere."""
    behind = holder_of(tensor)
    if behind is None:
        raise mixed(tensor)
    return behind


def mixed(tensor: torch.Tensor) -> DeviceMismatchError:
    """The error for an operand on the CPU, inside of a transform, or in a sparse layout."""
    if tensor.layout is not torch.strided:
        return DeviceMismatchError(
            f"Input tensor of layout {tensor.layout} and shape {tuple(tensor.shape)}: xla tensors are dense. "
            "Use .to_dense() first, then .to('xla')"
        )
    if private_torch.is_transformed(tensor):
        return DeviceMismatchError(
            f"a transform of torch.func wraps this tensor of shape {tuple(tensor.shape)}, where plain xla tensors are needed: make the "
            "call outside of the transform, or make the function a JAX one with xla_core.interop.to_jax and transform it there"
        )
    return DeviceMismatchError(
        f"Input tensor is not an XLA tensor: {tensor.type()} of shape {tuple(tensor.shape)}. "
        "Expected all tensors to be on the same device: move it first, with .to('xla')"
    )


def plainly(handler: Handler) -> Handler:
    """`handler`, called with the xla tensors behind plain arguments; it returns the plain ones that it writes to as themselves."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _holds_plain(args) or (kwargs and _holds_plain(kwargs.values())):
            return _replaced(handler, args, kwargs)
        return handler(args, kwargs)

    return run


def _holds_plain(items: Iterable[Any]) -> bool:
    """Whether there is a plain tensor among arguments, or in lists of them."""
    for item in items:
        cls = type(item)
        if cls is list or cls is tuple:
            if _holds_plain(item):
                return True
        elif cls is not XLATensor and isinstance(item, torch.Tensor) and tensor_behind(item) is not None:
            return True
    return False


def _replaced(handler: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    stand_ins: dict[int, tuple[XLATensor, torch.Tensor, XLATensor]] = {}

    def stand_in(item: Any) -> Any:
        behind = None if type(item) is XLATensor else tensor_behind(item)
        if behind is None:
            return item
        alias = view_of(behind._storage, behind._view)  # not `behind`: its shape may be changed in place, and others share it
        stand_ins[id(alias)] = alias, item, behind
        return alias

    result = handler(*tree_map(stand_in, (args, kwargs)))
    if not stand_ins:
        return result
    for alias, tensor, before in stand_ins.values():
        if alias._storage is not before._storage or alias._view is not before._view:
            give_data(tensor, alias)
    return tree_map(lambda item: stand_ins[id(item)][1] if id(item) in stand_ins else item, result)


def _bridge(source: Any) -> torch.Tensor:
    """A tensor like `source`, with a C++ side that any dense tensor can take over."""
    bridge: Any = private_torch.make_bridge(
        XLATensor, source.shape, torch.Tensor.stride(source), source.storage_offset(), source.dtype, source.device
    )
    private_torch.set_conj(bridge, source.is_conj())
    private_torch.set_neg(bridge, source.is_neg())
    storage_of(bridge)._behind = view_of(source._storage, source._view)
    return bridge  # type: ignore[no-any-return]


def give_data(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """`tensor.data = source`, as in torch, also if `source` is on an xla device and `tensor` is not."""
    if any_sharded():
        before, after = tensor_behind(tensor), tensor_behind(source)
        if before is not None and after is not None:
            keep_sharding_of(before, after)
    if _needs_bridge(tensor, source):
        _before_first()
        with private_torch.without_torch_function():  # modes must not see the bridge
            private_torch.set_cpp_data(tensor, _bridge(source))
    else:
        private_torch.set_cpp_data(tensor, source)


def _needs_bridge(tensor: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether `source` is an xla tensor, and the class of `tensor` has no `__torch_dispatch__`, ours or another one."""
    return type(source) is XLATensor and type(tensor).__torch_dispatch__ is private_torch.NO_TORCH_DISPATCH


def _may_get_data(*tensors: torch.Tensor) -> bool:
    """Whether `tensor.data = source` works. (Named parameters would clash with dynamo's own signature of this function.)"""
    tensor, source = tensors
    return private_torch.may_get_data(tensor, _bridge(source) if _needs_bridge(tensor, source) else source)


def _instance(cls: type, source: XLATensor, requires_grad: bool = False) -> Any:
    """An instance of a subclass of torch.Tensor over the data of `source`, without autograd history."""
    tensor = private_torch.make_subclass(cls, torch.empty(0, dtype=source.dtype, device="cpu"), requires_grad)
    give_data(tensor, source)
    return tensor


class _AsSubclass(torch.autograd.Function):
    """A tensor of another class over the same data, with autograd history."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, cls: type) -> torch.Tensor:
        """An instance of `cls`."""
        return _instance(cls, ours(tensor))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The same gradient."""
        return grad, None


def _as_subclass(tensor: torch.Tensor, cls: type) -> Any:
    """`tensor.as_subclass(cls)`."""
    behind = tensor_behind(tensor)
    if behind is None:
        return private_torch.as_subclass(tensor, cls)
    return _AsSubclass.apply(tensor, cls) if tensor.requires_grad else _instance(cls, behind)  # type: ignore[no-untyped-call]


def _untyped_storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    """`tensor.untyped_storage()`: the storage of the xla tensor behind, one object for all tensors that share its data."""
    storage: torch.UntypedStorage = storage_of(tensor)
    behind: XLATensor | None = getattr(storage, "_behind", None)
    return storage if behind is None else behind.untyped_storage()


def _data_ptr(data_ptr: Callable[[torch.Tensor], int]) -> Any:
    def address(tensor: torch.Tensor) -> int:
        try:
            return data_ptr(tensor)
        except RuntimeError:  # C++ has no address of data on the device
            behind = tensor_behind(tensor)
            if behind is None:
                raise
            return behind.data_ptr()

    return address


def _reduced(reduced: Callable[..., Any]) -> Any:
    def _reduce_ex_internal(tensor: torch.Tensor, protocol: Any) -> Any:
        return reduced(tensor, protocol) if holder_of(tensor) is None else saved_parts(tensor)

    return _reduce_ex_internal


def _new_parameter(new: Callable[..., Any]) -> Any:
    def __new__(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        behind = tensor_behind(data)
        return new(cls, data, requires_grad) if behind is None else _instance(cls, behind, requires_grad)

    return __new__


def _new_uninitialized(new: Callable[..., Any], requires_grad: bool) -> Any:
    def __new__(cls: type, requires_grad: bool = requires_grad, device: Any = None, dtype: torch.dtype | None = None, **others: Any) -> Any:
        target = torch.get_default_device() if device is None else torch.device(device)
        if target.type != "xla":
            return new(cls, requires_grad, device, dtype, **others)
        parameter = new(cls, requires_grad, "cpu", dtype, **others)
        parameter.data = torch.empty(0, dtype=parameter.dtype, device=target)
        return parameter

    return __new__


def _deep_copy(copy: Callable[..., Any]) -> Any:
    def __deepcopy__(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        if id(tensor) in memo or not tensor.is_leaf or isinstance(tensor, XLATensor):
            return copy(tensor, memo)
        behind = tensor_behind(tensor)
        if behind is None:
            return copy(tensor, memo)
        return copy_into(_instance(type(tensor), deep_copy(behind, memo), tensor.requires_grad), tensor, memo)

    return __deepcopy__


def _apply(apply: Callable[..., Any]) -> Any:
    """`nn.Module._apply` that can swap parameters with gradients: torch would swap the gradients, too, but ours are of another class."""

    def _apply(module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        if not private_torch.swaps_parameters():
            return apply(module, fn, recurse)
        moved: list[tuple[Parameter, torch.Tensor]] = []
        for parameter in module._parameters.values():
            if parameter is not None and parameter.grad is not None:
                with torch.no_grad():
                    grad = fn(parameter.grad)
                if XLATensor in (type(parameter.grad), type(grad)):
                    parameter.grad = None
                    moved.append((parameter, grad))
        result = apply(module, fn, recurse)
        for parameter, grad in moved:
            parameter.grad = grad
        return result

    return _apply


def register(before_first: Callable[[], None]) -> None:
    """Let torch's own types be on xla devices. before_first: called each time a tensor is about to move there; must do its work once."""
    global _before_first
    _before_first = before_first
    private_torch.replace_in_torch(
        {
            (torch.Tensor, "data"): lambda data: property(data.__get__, give_data, data.__delete__, data.__doc__),
            (torch.Tensor, "is_xla"): lambda is_xla: property(lambda tensor: tensor.device.type == "xla", doc=is_xla.__doc__),
            (torch.Tensor, "untyped_storage"): lambda _: _untyped_storage,
            (torch.Tensor, "data_ptr"): _data_ptr,
            (torch.Tensor, "as_subclass"): lambda _: _as_subclass,
            (torch.Tensor, "__deepcopy__"): _deep_copy,
            (torch.Tensor, "_reduce_ex_internal"): _reduced,
            (torch, "_has_compatible_shallow_copy_type"): lambda _: _may_get_data,
            (torch.nn.Module, "_apply"): _apply,
            (Parameter, "__new__"): _new_parameter,
            (UninitializedParameter, "__new__"): partial(_new_uninitialized, requires_grad=True),
            (UninitializedBuffer, "__new__"): partial(_new_uninitialized, requires_grad=False),
        }
    )


def is_xla(value: Any) -> bool:
    """Whether `value` is a tensor on an xla device; parameters and wrappers are."""
    return isinstance(value, torch.Tensor) and value.device.type == "xla"


def unwrapped(tensor: torch.Tensor) -> XLATensor:
    """The tensor itself, or the one that a wrapper (XLAShardedTensor) stands for.

    Raises DeviceMismatchError for a tensor that is not on xla, TypeError for other subclasses and for anything but a tensor.
    """
    outer = getattr(tensor, "global_tensor", tensor)
    inner = tensor_behind(outer)
    if inner is not None:
        return inner
    if isinstance(outer, torch.Tensor) and not is_xla(outer):
        raise mixed(outer)
    raise TypeError(f"expected an xla tensor or a wrapper with `global_tensor`, got {type(tensor).__name__}")

"""The tensor that users hold: a wrapper subclass on device `xla` that points to a storage, perhaps through a view."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from xla_core.base.errors import DeviceMismatchError
from xla_core.base.private_torch import (
    DISABLED_TORCH_FUNCTION,
    DisableTransforms,
    between_graphs,
    cpp_data,
    cpp_storage,
    make_wrapper,
    rebuild_subclass,
    set_conj,
    set_cpp_data,
    set_neg,
    tensor_text,
    without_torch_function,
)
from xla_core.engine.graph.pending_graph import Value, counted
from xla_core.engine.runtime.client import mend
from xla_core.engine.runtime.resharding import keep_sharding
from xla_core.engine.tensor.schema import Handler
from xla_core.engine.tensor.storage import Storage, saved_parts, shared_storage

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_make_handler: Callable[[Any], Handler]
_other_arguments: Callable[[Any, Any, Any, BaseException], Arguments | None]


def set_dispatch(
    make_handler: Callable[[Any], Handler], other_arguments: Callable[[Any, Any, Any, BaseException], Arguments | None]
) -> None:
    """Let `make_handler` make the handler of each overload at its first call, and store it as the overload's `_xla_handler`.

    other_arguments: gives the arguments to retry a call with (overload, args, kwargs) that raised an error, or None.
    """
    global _make_handler, _other_arguments
    _make_handler, _other_arguments = make_handler, other_arguments


class XLATensor(torch.Tensor):
    """A tensor on an `xla` device.

    Its C++ side carries shape, dtype, device, torch's own strides and autograd; `_storage` and `_view` carry the data: a
    `_view` of None means the whole storage, else the view that this tensor is. `_seen` keeps the last value read of a view.
    """

    __slots__ = ("_seen", "_view", "_storage")

    _storage: Storage
    _view: Any
    _seen: tuple[Value, Value] | None

    __torch_function__ = DISABLED_TORCH_FUNCTION

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        try:
            handler = func._xla_handler
        except AttributeError:
            handler = _make_handler(func)
        try:
            return handler(args, kwargs or {})
        except BaseException as error:  # Ctrl-C between any two steps of recording
            mend()
            other = _other_arguments(func, args, kwargs or {}, error)
            if other is None:
                if isinstance(error, DeviceMismatchError) and not all(issubclass(kind, XLATensor) for kind in types):
                    return NotImplemented  # the operand that is none of ours may be of a class that knows what to do
                raise
        return cls.__torch_dispatch__(func, types, *other)

    @property
    def is_xla(self) -> bool:
        """True: the C++ property only knows torch's own XLA dispatch key."""
        return True

    @property
    def data(self) -> torch.Tensor:
        """The same data without autograd history."""
        return cpp_data(self)

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        set_data(self, other)

    @property
    def _xla_alias_id(self) -> int:
        """Equal for tensors that share data, as long as one of them lives."""
        return id(self._storage)

    def data_ptr(self) -> int:
        """A number that tells where the tensor's data begins, equal for tied weights; 0 for a tensor without elements.

        It is no address: nothing can be read there.
        """
        return shared_storage(self._storage).data_ptr() + int(self.storage_offset()) * self.itemsize if self.numel() else 0

    def untyped_storage(self) -> Any:
        """The same object for tensors that share data: its size, and a `data_ptr` of its own, which is no address."""
        return shared_storage(self._storage)

    def __coerce_same_metadata_as_tangent__(self, metadata: Any, kind: type | None = None) -> XLATensor | None:
        """A gradient on its way into a compiled backward graph, which was traced with plain tensors."""
        return self if kind is torch.Tensor else None

    def tolist(self) -> Any:
        """The values as Python numbers: a value read."""
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """A NumPy copy if `force`; else raises TypeError, as tensors on any other device than the CPU do."""
        if force:
            return self.detach().cpu().numpy(force=True)
        raise TypeError(f"can't convert a tensor on {self.device} to numpy: copy it to host memory with .cpu() first")

    def map_(self, tensor: torch.Tensor, callable: Any) -> Any:
        """Raises TypeError, as tensors on any other device than the CPU do."""
        raise TypeError("map_ is only implemented on CPU tensors: use torch's operations, or .cpu() first")

    def map2_(self, x: torch.Tensor, y: torch.Tensor, callable: Any) -> Any:
        """Raises TypeError, as tensors on any other device than the CPU do."""
        raise TypeError("map2_ is only implemented on CPU tensors: use torch's operations, or .cpu() first")

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def type(self, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        """`torch.xla.FloatTensor` and so on, or a cast to `dtype`."""
        if dtype is None:
            return f"torch.xla.{torch.empty((), dtype=self.dtype).type().removeprefix('torch.')}"
        return super().type(dtype, non_blocking, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> XLATensor:
        if not self.is_leaf:
            return super().__deepcopy__(memo)  # type: ignore[no-untyped-call,no-any-return]  # raises torch's own error
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        fresh = deep_copy(self, memo)
        fresh.requires_grad_(self.requires_grad)
        return copy_into(fresh, self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        rebuild, parts = saved_parts(self)  # under torch's own name for the class, which loads where this project is not installed
        state = dict(self.__dict__)
        return (rebuild_subclass, (rebuild, XLATensor, parts, state)) if state else (rebuild, parts)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return render(self)


_STRIDED = torch.strided


_made = itertools.count()


def made() -> int:
    """The number of tensors that `wrap` and `view_of` have made."""
    return counted(_made)


_rebound = itertools.count()


def rebound() -> int:
    """How often an existing tensor was given the data of another (`tensor.data = other`)."""
    return counted(_rebound)


def wrap(value: Value) -> XLATensor:
    """A new tensor with a storage of its own."""
    next(_made)
    storage = Storage()
    storage.value = value
    storage.annotations = None
    aval = value.aval
    tensor: XLATensor = make_wrapper(XLATensor, aval.shape, aval.strides, None, None, aval.dtype, _STRIDED, value.recorder.device)
    tensor._storage = storage
    tensor._view = None
    tensor._seen = None
    return tensor


def wrap_all(values: Sequence[Value]) -> list[XLATensor]:
    """`wrap` for each value, without its calls: operations with lists of results make hundreds."""
    tensors = []
    for value in values:
        next(_made)
        storage = Storage()
        storage.value = value
        storage.annotations = None
        aval = value.aval
        tensor: XLATensor = make_wrapper(XLATensor, aval.shape, aval.strides, None, None, aval.dtype, _STRIDED, value.recorder.device)
        tensor._storage = storage
        tensor._view = None
        tensor._seen = None
        tensors.append(tensor)
    return tensors


def view_of(storage: Storage, spec: Any, source: XLATensor | None = None) -> XLATensor:
    """A tensor that is view `spec` of a storage (None: all of it). In inference mode it is a normal tensor if `source` is one."""
    if source is not None and torch.is_inference_mode_enabled() and not source.is_inference():
        with torch.inference_mode(False):
            return view_of(storage, spec)
    next(_made)
    value = storage.value
    whole = spec is None or spec is value.aval.root
    aval = value.aval if whole else spec.aval
    strides, start = (aval.strides, None) if whole else (spec.strides, spec.start)
    tensor: XLATensor = make_wrapper(XLATensor, aval.shape, strides, start, None, aval.dtype, _STRIDED, value.recorder.device)
    tensor._storage = storage
    tensor._view = None if whole else spec
    tensor._seen = None
    if not whole and spec.lazy:
        set_conj(tensor, spec.meta.is_conj())
        set_neg(tensor, spec.meta.is_neg())
    return tensor


_Kind = TypeVar("_Kind", bound=XLATensor)


def wrap_like(kind: type[_Kind], inner: XLATensor) -> _Kind:
    """A new tensor of class `kind`, without autograd, that has the shape and strides of `inner` and shows its data."""
    strides, start = torch.Tensor.stride(inner), torch.Tensor.storage_offset(inner)
    tensor: _Kind = make_wrapper(kind, inner.shape, strides, start, None, inner.dtype, _STRIDED, inner.device)
    tensor._storage, tensor._view, tensor._seen = inner._storage, inner._view, None
    return tensor


def shows_same(first: XLATensor, second: XLATensor) -> bool:
    """Whether two tensors show the same elements of the same data. For a derived class, what it shows counts, not what it wraps."""
    return first._storage is second._storage and first._view is second._view


_Copied = TypeVar("_Copied", bound=torch.Tensor)


def copy_into(fresh: _Copied, tensor: torch.Tensor, memo: dict[int, Any]) -> _Copied:
    """Add copies of the gradient and the attributes of `tensor` to `fresh`, its copy; returns `fresh`."""
    memo[id(tensor)] = fresh
    if tensor.grad is not None:
        fresh.grad = copy.deepcopy(tensor.grad, memo)
    for name, attribute in tensor.__dict__.items():
        setattr(fresh, name, copy.deepcopy(attribute, memo))
    return fresh


@between_graphs
def set_data(tensor: XLATensor, other: torch.Tensor) -> None:
    """`tensor.data = other`: both sides of the tensor move to `other`'s data."""
    if not isinstance(other, XLATensor):
        with without_torch_function():  # a function mode would ask another method
            other = getattr(cpp_storage(other), "_behind", other) if other.device.type == "xla" else other
    if not isinstance(other, XLATensor):
        raise RuntimeError(f"cannot set the data of an xla tensor to a tensor on {other.device}: move it with .to('xla') first")
    if other.is_inference() is not tensor.is_inference():  # torch wants the same kind of tensor on both sides
        with torch.inference_mode(tensor.is_inference()):
            other = view_of(other._storage, other._view)
    _set_cpp_data(tensor, other)
    next(_rebound)
    keep_sharding_of(tensor, other)
    tensor._storage, tensor._view, tensor._seen = other._storage, other._view, None


def _set_cpp_data(tensor: XLATensor, other: XLATensor) -> None:
    """Give the C++ side of `tensor` that of `other`, lazy bits included: without them both have the same kind, whatever their dtypes."""
    conj, neg = other.is_conj(), other.is_neg()
    if conj or neg:
        with torch.inference_mode(other.is_inference()):
            other = view_of(other._storage, other._view)
        set_conj(other, False)
        set_neg(other, False)
    set_conj(tensor, False)
    set_neg(tensor, False)
    set_cpp_data(tensor, other)
    set_conj(tensor, conj)
    set_neg(tensor, neg)


def keep_sharding_of(tensor: XLATensor, other: XLATensor) -> None:
    """Give `other`, whose data `tensor` is about to show, the sharding of `tensor`, if it has the same shape and no sharding (SPMD)."""
    if tensor._storage.annotations is not None and tensor._storage is not other._storage:
        keep_sharding(tensor._storage, tensor._view, other._storage, other._view)
        other._seen = None


def deep_copy(tensor: XLATensor, memo: dict[int, Any]) -> XLATensor:
    """A tensor over a copy of the storage, without autograd history: tensors that share data do so in the copies, too.

    Wrappers are copied by themselves.
    """
    with torch.no_grad():
        if type(tensor) is not XLATensor:
            return tensor.detach().clone()  # type: ignore[return-value]
        copied: Any = copy.deepcopy(shared_storage(tensor._storage), memo)
        fresh = view_of(copied.behind(), tensor._view)
        keep_sharding_of(tensor, fresh)
        return fresh


def render(tensor: XLATensor) -> str:
    """The usual text of a tensor, from one read of its values."""
    with DisableTransforms():  # of torch.func, which would wrap the copy
        cpu = tensor.detach().cpu()
    body = str(tensor_text(cpu)).rstrip()
    if not body.endswith(")"):
        return body
    parts = [f", device='{tensor.device}'"]
    if tensor.grad_fn is not None:
        parts.append(f", grad_fn=<{tensor.grad_fn.name()}>" if "Backward" in type(tensor.grad_fn).__name__ else "")
    elif tensor.requires_grad:
        parts.append(", requires_grad=True")
    head, dtype = _split_dtype(body)
    return f"{head}{parts[0]}{dtype}{''.join(parts[1:])})"


def _split_dtype(body: str) -> tuple[str, str]:
    """Text without its closing parenthesis, cut before `, dtype=…`, where torch puts the device."""
    inner = body[:-1]
    index = inner.rfind(", dtype=")
    return (inner, "") if index < 0 else (inner[:index], inner[index:])

"""A tensor that shows its sharding: a wrapper whose operations are those of the tensor inside."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from xla_core.abi.declarations import budget
from xla_core.abi.tensors import XLATensor, tensor_behind
from xla_core.abi.views import shows_same, wrap_like
from xla_spmd import local_shards
from xla_spmd._compat import DISABLED_TORCH_FUNCTION, tree_map
from xla_spmd.annotations import annotation_of, sharding_text
from xla_spmd.dtensor_support import support
from xla_spmd.errors import AnnotationError
from xla_spmd.local_shards import XLAShard
from xla_spmd.op_sharding import ShardingType
from xla_spmd.specs import PartitionSpec


class _Results(threading.local):
    plain = False


_results = _Results()


@budget()
@contextmanager
def no_dispatch() -> Iterator[None]:
    """Let operations on wrappers return plain tensors inside, in this thread, as if they were called with the tensors in the wrappers."""
    before, _results.plain = _results.plain, True
    try:
        yield
    finally:
        _results.plain = before


class XLAShardedTensor(XLATensor):
    """A wrapper of a tensor on `xla`, of the whole tensor's shape. Operations on it give wrapped results.

    global_tensor: the tensor inside. mesh_shape, partition_spec: how it is sharded, where that is known.
    Raises AnnotationError for a tensor that is not on `xla`.
    """

    # No attributes that pickles and copies carry along.
    __slots__ = ("_dtensor_spec", "_mesh", "global_tensor", "mesh_shape", "partition_spec")

    global_tensor: torch.Tensor
    mesh_shape: tuple[int, ...] | None
    partition_spec: PartitionSpec | None
    _dtensor_spec: Any
    _mesh: Any  # the Mesh or torch DeviceMesh, where one was given; results of operators have the mesh of an operand

    __torch_function__ = DISABLED_TORCH_FUNCTION

    @staticmethod
    def __new__(
        cls, elem: torch.Tensor, mesh_shape: Sequence[int] | None = None, partition_spec: PartitionSpec | None = None, **_: Any
    ) -> XLAShardedTensor:
        inner = unwrap_sharded_tensor(elem)
        if tensor_behind(inner) is None:
            raise AnnotationError(f"only tensors on an xla device are sharded, got one on {inner.device}: move it with .to('xla') first")
        wrapper = _wrapper_of(inner if type(inner) is XLATensor and not inner.requires_grad else _without_history(inner))
        _with_placement(wrapper, None, mesh_shape, partition_spec)
        return wrapper.requires_grad_(inner.requires_grad)

    def __init__(self, *_: Any, **__: Any) -> None:
        """`__new__` has done it."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        wrappers: dict[int, XLAShardedTensor] = {}

        def inside(item: Any) -> Any:
            if not isinstance(item, XLAShardedTensor):
                return item
            wrappers[id(item.global_tensor)] = item
            return item.global_tensor

        def like(wrapper: XLAShardedTensor) -> XLAShardedTensor:
            for operand in wrappers.values():
                if operand._mesh is not None:
                    wrapper._mesh = operand._mesh
                    if operand.shape == wrapper.shape and _keeps_sharding(func):
                        wrapper.mesh_shape, wrapper.partition_spec = operand.mesh_shape, operand.partition_spec
                    break
            return wrapper

        def outside(item: Any) -> Any:
            # Of this very type: wrappers are XLATensors too, and stay as they are.
            if type(item) is not XLATensor:
                return item
            written = wrappers.get(id(item))  # what is written in place comes back as the object that it was
            return like(_wrapper_of(item)) if written is None else _refreshed(written)

        inner_args, inner_kwargs = tree_map(inside, (args, kwargs or {}))
        result = func(*inner_args, **inner_kwargs)
        return result if _results.plain else tree_map(outside, result)

    @property
    def data(self) -> torch.Tensor:
        """The same data without autograd history."""
        return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        self.global_tensor.data = unwrap_sharded_tensor(other)
        _show(self)

    def requires_grad_(self, requires_grad: bool = True) -> XLAShardedTensor:
        """Whether gradients of a leaf are wanted; the tensor inside says the same."""
        super().requires_grad_(requires_grad)
        if self.global_tensor.is_leaf:
            self.global_tensor.requires_grad_(requires_grad)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> XLAShardedTensor:
        fresh: XLAShardedTensor = super().__deepcopy__(memo)  # type: ignore[assignment]
        return _with_placement(fresh, self._mesh, self.mesh_shape, self.partition_spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled plain, as a parameter if it is one."""
        plain = self.global_tensor.detach().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            plain = torch.nn.Parameter(plain, self.requires_grad)
        return plain.__reduce_ex__(protocol)

    @property
    def sharding_spec(self) -> str:
        """HLO's text of the sharding; `''` if it has none."""
        return sharding_text(self.global_tensor)

    @property
    def sharding_type(self) -> ShardingType | None:
        """The type of the sharding; None if it has none."""
        annotation = annotation_of(self.global_tensor)
        return None if annotation is None else annotation.sharding.effective_type

    @property
    def local_shards(self) -> list[XLAShard]:
        """The shards of the devices of this process, in their order. Raises RuntimeError if the tensor has no sharding."""
        return local_shards.local_shards(self.global_tensor)

    def load_local_shards_(self, given: Sequence[XLAShard]) -> None:
        """Overwrite the tensor with one shard for each device of this process, padded as those that `local_shards` gives.

        Raises RuntimeError for a replicated tensor, for more or fewer shards than devices, and for shards of another shape.
        """
        local_shards.load_local_shards(self.global_tensor, given)

    @property
    def device_mesh(self) -> Any:
        """The torch DeviceMesh that it is placed on. Raises as `placements`."""
        return support().device_mesh_of_tensor(self)

    @property
    def placements(self) -> tuple[Any, ...]:
        """For each mesh axis, Shard or Replicate, as it was asked for; Replicate where nobody did. Raises ValueError without a mesh."""
        return support().placements_of(self)

    @property
    def _spec(self) -> Any:
        """The DTensorSpec, which is the same object until the tensor is sharded otherwise. Raises as `placements`."""
        return support().spec_of(self)

    def invalidate_spec_cache(self) -> None:
        """Make `_spec` anew when it is next asked for."""
        self._dtensor_spec = None

    def redistribute(
        self,
        device_mesh: Any = None,
        placements: Sequence[Any] | None = None,
        *,
        async_op: bool = False,
        forward_dtype: torch.dtype | None = None,
        backward_dtype: torch.dtype | None = None,
    ) -> XLAShardedTensor:
        """A new tensor with this data, placed so, in any case asynchronously; gradients flow back.

        device_mesh: its own if None. forward_dtype: of the result. backward_dtype: in which gradients are moved.
        Raises RuntimeError without placements, and as `xla_distribute_tensor`.
        """
        redistributed: XLAShardedTensor = support().redistribute(self, device_mesh, placements, forward_dtype, backward_dtype)
        return redistributed

    def to_local(self, *, grad_placements: Sequence[Any] | None = None) -> torch.Tensor:
        """The plain tensor, which in SPMD mode is the whole tensor: for each device's shard see `local_shards`. Gradients flow back."""
        return support().to_local(self)

    def full_tensor(self, *, grad_placements: Sequence[Any] | None = None) -> torch.Tensor:
        """The whole tensor, plain and replicated. Gradients flow back. Raises ValueError without a mesh."""
        return support().full_tensor(self)

    def storage_offset(self) -> int:
        """The offset of a view in the data that it shares, in elements."""
        return int(self.global_tensor.storage_offset())

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"XLAShardedTensor({self.global_tensor!r}, sharding={self.sharding_spec!r})"


def has_data(t: Any) -> bool:
    """Whether `t` is on a device; False for the fake tensor that stands for it while a graph is traced."""
    return isinstance(t, XLATensor) or tensor_behind(t) is not None


def is_traced(t: torch.Tensor) -> bool:
    """Whether `t` stands for a tensor on `xla` in a graph that is traced."""
    return t.device.type == "xla" and not has_data(t)


def _without_history(tensor: torch.Tensor) -> Any:
    """An xla tensor with the same data and no autograd history; of a plain tensor, the xla tensor behind it."""
    inner = tensor_behind(tensor)
    return (tensor if inner is None else inner).detach()


def _wrapper_of(inner: Any) -> XLAShardedTensor:
    """A wrapper without autograd history that shares its data with the tensor inside."""
    wrapper = wrap_like(XLAShardedTensor, inner)
    wrapper.global_tensor = inner
    wrapper.mesh_shape = wrapper.partition_spec = wrapper._dtensor_spec = wrapper._mesh = None
    return wrapper


# Operators besides the pointwise ones whose result has the data of their operand.
_SAME_DATA = (torch.ops.aten.alias.default, torch.ops.aten.detach.default, torch.ops.aten._to_copy.default)


@cache
def _keeps_sharding(operator: Any) -> bool:
    """Whether a result of its operand's shape keeps the operand's sharding."""
    return torch.Tag.pointwise in getattr(operator, "tags", ()) or operator in _SAME_DATA


def _with_placement(wrapper: XLAShardedTensor, mesh: Any, shape: Sequence[int] | None, spec: PartitionSpec | None) -> XLAShardedTensor:
    wrapper._mesh, wrapper.partition_spec = mesh, spec
    wrapper.mesh_shape = None if shape is None else tuple(shape)
    return wrapper


def _refreshed(wrapper: XLAShardedTensor) -> XLAShardedTensor:
    """Update a wrapper whose tensor was written to, perhaps into another shape."""
    inner: Any = wrapper.global_tensor
    if not shows_same(wrapper, inner) or wrapper.shape != inner.shape:
        _show(wrapper)
    return wrapper


def _show(wrapper: XLAShardedTensor) -> None:
    """Set a wrapper's shape, dtype and data to those of the tensor inside."""
    XLATensor.data.__set__(wrapper, wrapper.global_tensor)  # type: ignore[attr-defined]
    wrapper.invalidate_spec_cache()


class Unwrapping(torch.autograd.Function):
    """From a wrapper with history to the tensor inside."""

    @staticmethod
    def forward(ctx: Any, wrapper: XLAShardedTensor) -> torch.Tensor:
        """The tensor inside."""
        ctx.placement = wrapper._mesh, wrapper.mesh_shape, wrapper.partition_spec
        inside: torch.Tensor = _without_history(wrapper.global_tensor)
        return inside

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> XLAShardedTensor:
        """The gradient, wrapped as its tensor is."""
        return _with_placement(_wrapper_of(_without_history(unwrap_sharded_tensor(grad))), *ctx.placement)


class _Wrapping(torch.autograd.Function):
    """Between a tensor with history and its wrapper."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> XLAShardedTensor:
        """The wrapper."""
        return _wrapper_of(_without_history(tensor))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """The gradient, plain."""
        plain: torch.Tensor = unwrap_sharded_tensor(grad)
        return plain


@budget()
def wrap_as_sharded_tensor(
    t: torch.Tensor, mesh_shape: Sequence[int] | None = None, partition_spec: PartitionSpec | None = None
) -> XLAShardedTensor:
    """A wrapper of `t`, which is `t` itself if it is one. Gradients flow through it. Raises as XLAShardedTensor."""
    return wrap_over(None, t, mesh_shape, partition_spec)


def wrap_over(
    mesh: Any, t: torch.Tensor, mesh_shape: Sequence[int] | None = None, partition_spec: PartitionSpec | None = None
) -> XLAShardedTensor:
    """`wrap_as_sharded_tensor`, for a tensor that is placed on `mesh`, ours or torch's."""
    if isinstance(t, XLAShardedTensor):
        if mesh is None and partition_spec is None:
            return t
        wrapper = t
    # A node of autograd only where gradients can come back through it.
    elif t.requires_grad and torch.is_grad_enabled() and tensor_behind(t) is not None:
        wrapper = _Wrapping.apply(t)  # type: ignore[no-untyped-call]
    else:
        wrapper = XLAShardedTensor(t)
    return _with_placement(wrapper, mesh, mesh_shape, partition_spec)


@budget()
def unwrap_sharded_tensor(t: Any) -> Any:
    """The tensor inside a wrapper; anything else as it is."""
    return t.global_tensor if isinstance(t, XLAShardedTensor) else t

"""The private names of torch that this package needs; tests/test_compat.py says what breaks when one of them goes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.utils._pytree

# As `__torch_function__`: functions of torch stay what they are, only operations come through.
DISABLED_TORCH_FUNCTION: Any = torch._C._disabled_torch_function_impl

# Nested tuples, lists and dicts, as torch's dispatch brings them.
tree_map: Any = torch.utils._pytree.tree_map
tree_flatten: Any = torch.utils._pytree.tree_flatten
tree_unflatten: Any = torch.utils._pytree.tree_unflatten

# A context in which writes to a tensor do not count as changes of what autograd saved.
same_version: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]


def __getattr__(name: str) -> Any:
    """`StridedShard`: the placement of a mesh axis that splits a dimension after later axes have."""
    if name != "StridedShard":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch.distributed.tensor.placement_types import _StridedShard

    return _StridedShard


def dtensor_spec(mesh: Any, placements: tuple[Any, ...], like: torch.Tensor) -> Any:
    """The DTensor spec of a tensor: mesh, placements, shape, strides and dtype."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    return DTensorSpec(mesh, placements, TensorMeta(like.shape, like.stride(), like.dtype))


def all_submeshes(mesh: Any) -> torch.Tensor:
    """The device ids of a torch DeviceMesh and of all its sibling slices in the root mesh, shape (number of slices, *shape of the mesh)."""
    submeshes: torch.Tensor = mesh._layout.remap_to_tensor(mesh._rank_map)
    return submeshes


def make_meshes_of(mesh_class: type, applies_to: Callable[[str], bool]) -> None:
    """Make `DeviceMesh(device_type, …)` construct `mesh_class` if `applies_to(device_type)`, and for slices of such a mesh."""
    from torch.distributed.device_mesh import DeviceMesh

    def new(cls: type, device_type: str = "", *_: Any, _root_mesh: Any = None, **__: Any) -> Any:
        chosen = cls is DeviceMesh and (isinstance(_root_mesh, mesh_class) or applies_to(device_type))
        return object.__new__(mesh_class if chosen else cls)

    DeviceMesh.__new__ = new  # type: ignore[method-assign]


def check_before_fully_shard(check: Callable[[Any], None]) -> None:
    """Call `check(mesh)` in torch's fully_shard, if it is loaded, after it has asked the mesh for its groups."""
    module: Any = sys.modules.get("torch.distributed.fsdp._fully_shard._fully_shard")
    original = getattr(module, "_get_device_from_mesh", None)
    if module is None or original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def checked(mesh: Any) -> Any:
        check(mesh)
        return original(mesh)

    module._get_device_from_mesh = checked


def serve_dtensors(is_ours: Callable[[Any], bool], from_local: Callable[..., Any], make: Callable[..., Any]) -> None:
    """Let `DTensor.from_local` and the factories of torch.distributed.tensor call these functions where `is_ours(mesh)`.

    from_local: called with tensor, mesh, placements and the shape that was given. make: with torch's function, size, mesh, placements and
    options, among them `fill_value`.
    """
    from torch.distributed.device_mesh import _mesh_resources
    from torch.distributed.tensor import _api

    original, original_init = _api._FromTorchTensor, _api._dtensor_init_helper

    class FromTorchTensor:
        @staticmethod
        def apply(tensor: Any, mesh: Any, placements: Any, run_check: Any, shape: Any = None, *rest: Any) -> Any:
            if is_ours(mesh):
                return from_local(tensor, mesh, placements, shape)
            return original.apply(tensor, mesh, placements, run_check, shape, *rest)

    def init(function: Any, size: Any, device_mesh: Any = None, placements: Any = None, **options: Any) -> Any:
        mesh = device_mesh or _mesh_resources.get_current_mesh()
        return (make if is_ours(mesh) else original_init)(function, size, mesh, placements, **options)

    _api._FromTorchTensor, _api._dtensor_init_helper = FromTorchTensor, init  # type: ignore[assignment,misc]


def serve_local_map(is_ours: Callable[[Any], bool], local_map: Callable[..., Any]) -> None:
    """Let functions of torch's `local_map`, also those that were made before, call `local_map` where `is_ours(arguments)`.

    local_map: called with the function, out_placements, in_placements, the mesh, redistribute_inputs, and the tuple and dict of arguments.
    """
    from torch.distributed.tensor.experimental import _func_map

    wrapped: Any = _func_map._local_map_wrapped
    original = FunctionType(wrapped.__code__, _func_map.__dict__)

    def choose(function: Any, outputs: Any, inputs: Any, of_gradients: Any, mesh: Any, redistribute: Any, *args: Any, **kwargs: Any) -> Any:
        if is_ours(args):
            return local_map(function, outputs, inputs, mesh, redistribute, args, kwargs)
        return original(function, outputs, inputs, of_gradients, mesh, redistribute, *args, **kwargs)

    # Replace its code, not the function: partial objects in the user's modules hold the function itself.
    wrapped.__code__ = _call_choose.__code__
    wrapped.__globals__["_choose_local_map"] = choose


def _call_choose(*args: Any, **kwargs: Any) -> Any:
    return _choose_local_map(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821

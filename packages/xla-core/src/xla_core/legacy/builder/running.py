"""Run computations on xla tensors, as one recorded operation; and make tensors that have a shape and no values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import numpy as np
import torch

from xla_core.base.dtypes import device_dtype, torch_dtype
from xla_core.base.errors import ExecutionError
from xla_core.base.private_torch import between_graphs
from xla_core.engine.graph.aval import aval_of
from xla_core.engine.graph.pending_graph import buffer_value
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.tensor.jax_call import call_jax
from xla_core.engine.tensor.plain import ours
from xla_core.engine.tensor.tensor import wrap
from xla_core.engine.tensor.values import value_of
from xla_core.legacy.builder import nodes
from xla_core.legacy.builder.modules import computation_from_module
from xla_core.legacy.builder.nodes import XlaBuilder, XlaComputation, XlaOp
from xla_core.legacy.builder.shapes import Shape, shape_of, structs_of, type_name
from xla_core.legacy.builder.table import operator


@between_graphs
def user_computation(opname: str, tensors: Sequence[torch.Tensor], computation: XlaComputation) -> list[torch.Tensor]:
    """The results of a computation on xla tensors, recorded as one operation of that name; a tuple gives several.

    Traced once for each computation, compiled once for each program. Gradients are those of JAX. Raises ValueError for tensors that do
    not fit the parameters, RuntimeError for those on another device.
    """
    actual = [(tuple(tensor.shape), device_dtype(tensor.dtype)) for tensor in tensors]
    expected = [(struct.shape, struct.dtype) if not isinstance(struct, tuple) else None for struct in computation.parameters]
    if actual != expected:
        takes = ", ".join(repr(Shape(shape_of(struct))) for struct in computation.parameters)
        got = ", ".join(f"{type_name(dtype)}[{','.join(map(str, sizes))}]" for sizes, dtype in actual)
        raise ValueError(f"computation {computation.name!r} takes ({takes}), not ({got})")
    results: list[torch.Tensor] = jax.tree.leaves(call_jax(computation, tuple(tensors), name=opname))
    return results


def xla_computation_as_func(computation: XlaComputation, name: str | None = None) -> Callable[..., Any]:
    """A function of xla tensors that records a computation: one tensor, or a list where the result is a tuple."""

    def run(*args: torch.Tensor) -> Any:
        results = user_computation(name or computation.name, args, computation)
        return results[0] if len(results) == 1 else results

    run.__name__ = name or computation.name
    return run


def tensor_shape(tensor: torch.Tensor, device: str = "") -> Shape:
    """The shape and type that a tensor has on the device, or, for a CPU tensor, would have there."""
    return Shape.create(type_name(device_dtype(tensor.dtype)), tensor.shape)


def create_builder(name: str) -> XlaBuilder:
    """A builder, to which the operations of one computation belong."""
    return XlaBuilder(name)


def mkshape(dtype: str, sizes: Sequence[int], dynamic_dimensions: Sequence[bool] | None = None) -> Shape:
    """The shape of an array of a type (`"f32"`)."""
    return Shape.create(dtype, sizes, dynamic_dimensions)


def computation_from_module_proto(name: str, proto: bytes | str) -> XlaComputation:
    """The computation of a serialized HloModuleProto, of HLO text, or of StableHLO as text or bytecode. ValueError for other data."""
    return computation_from_module(name, proto)


def get_computation_hlo(computation: XlaComputation) -> str:
    """The HLO text of a computation."""
    return nodes.computation_text(computation)


class _NoBuffer:
    """Takes the place of a placeholder's buffer: a program can be written with it as an input, but not run."""

    def __init__(self, struct: jax.ShapeDtypeStruct) -> None:
        self.shape = struct.shape
        self.dtype = struct.dtype
        self.size = struct.size
        self.ndim = struct.ndim
        self.sharding = None

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ExecutionError(_NO_VALUE)

    def is_deleted(self) -> bool:
        """False: it was never there."""
        return False

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ExecutionError(_NO_VALUE)

    def __dlpack__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ExecutionError(_NO_VALUE)


_NO_VALUE = "a placeholder tensor has a shape and a dtype, but no values: it can be an input of a program that is written, not run"


def create_placeholder_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the current device with a shape and a dtype, for programs that are written (as HLO, say) and not run.

    Reading values, or running what needs them, raises ExecutionError (a RuntimeError).
    """
    aval = aval_of(tuple(shape), dtype)
    stand_in: Any = _NoBuffer(aval.struct)
    return wrap(buffer_value(current_recorder(), aval, stand_in, shared=True))


def is_placeholder(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a placeholder, or a view of all of one."""
    return isinstance(value_of(ours(tensor)).buffer, _NoBuffer)


_xla_op_create_builder = create_builder


def _xla_op_create(builder: XlaBuilder, opname: str, operands: Sequence[XlaOp], args: dict[str, Any]) -> XlaOp:
    return nodes.operation(builder, opname, operator(opname), operands, args)


def _xla_op_param(builder: XlaBuilder, param_no: int, shape: Any) -> XlaOp:
    return nodes.parameter(builder, param_no, shape)


_xla_op_build = nodes.build


def _xla_op_builder(op: XlaOp) -> XlaBuilder:
    return op.builder


def _xla_op_shape(op: XlaOp) -> Any:
    return shape_of(op.structs)


def _xla_op_tensor_shape(tensor: torch.Tensor, device: str = "") -> Any:
    return tensor_shape(tensor, device).shape


_xla_op_computation_from_module_proto = computation_from_module_proto


_xla_computation_text = nodes.computation_text


_xla_user_computation = user_computation


def _xla_create_placeholder_tensor(shape: Any) -> torch.Tensor:
    struct = structs_of(shape)
    return create_placeholder_tensor(struct.shape, torch_dtype(np.dtype(struct.dtype)))


_is_placecholder = is_placeholder

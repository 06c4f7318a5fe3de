"""Computations built operation by operation, and operations from JAX functions."""

from __future__ import annotations

from xla_core.engine.tensor.jax_call import call_jax
from xla_core.engine.tensor.jax_call import traced_functions as _jax_to_xla_computation_cache_elements
from xla_core.legacy.builder.callables import CompiledCallableWithCache, FlattenedInputFunc, JaxCallable, JaxFlattenedInputFunc, XlaCallable
from xla_core.legacy.builder.op import Op, create_computation, mkleaf, mkop, mkparam
from xla_core.legacy.builder.running import (
    computation_from_module_proto,
    create_builder,
    create_placeholder_tensor,
    get_computation_hlo,
    mkshape,
    tensor_shape,
    xla_computation_as_func,
)
from xla_core.legacy.builder.shapes import Shape, Type

__all__ = [
    "CompiledCallableWithCache",
    "FlattenedInputFunc",
    "JaxCallable",
    "JaxFlattenedInputFunc",
    "Op",
    "Shape",
    "Type",
    "XlaCallable",
    "_jax_to_xla_computation_cache_elements",
    "call_jax",
    "computation_from_module_proto",
    "create_builder",
    "create_computation",
    "create_placeholder_tensor",
    "get_computation_hlo",
    "mkleaf",
    "mkop",
    "mkparam",
    "mkshape",
    "tensor_shape",
    "xla_computation_as_func",
]

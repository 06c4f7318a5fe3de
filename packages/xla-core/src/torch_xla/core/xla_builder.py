"""Computations built operation by operation, and operations from JAX functions."""

from xla_core.engine.tensor import jax_call
from xla_core.engine.tensor.jax_call import call_jax as call_jax
from xla_core.legacy.builder.callables import CompiledCallableWithCache as CompiledCallableWithCache
from xla_core.legacy.builder.callables import FlattenedInputFunc as FlattenedInputFunc
from xla_core.legacy.builder.callables import JaxCallable as JaxCallable
from xla_core.legacy.builder.callables import JaxFlattenedInputFunc as JaxFlattenedInputFunc
from xla_core.legacy.builder.callables import XlaCallable as XlaCallable
from xla_core.legacy.builder.op import Op as Op
from xla_core.legacy.builder.op import create_computation as create_computation
from xla_core.legacy.builder.op import mkleaf as mkleaf
from xla_core.legacy.builder.op import mkop as mkop
from xla_core.legacy.builder.op import mkparam as mkparam
from xla_core.legacy.builder.running import computation_from_module_proto as computation_from_module_proto
from xla_core.legacy.builder.running import create_builder as create_builder
from xla_core.legacy.builder.running import create_placeholder_tensor as create_placeholder_tensor
from xla_core.legacy.builder.running import get_computation_hlo as get_computation_hlo
from xla_core.legacy.builder.running import mkshape as mkshape
from xla_core.legacy.builder.running import tensor_shape as tensor_shape
from xla_core.legacy.builder.running import xla_computation_as_func as xla_computation_as_func
from xla_core.legacy.builder.shapes import Shape as Shape
from xla_core.legacy.builder.shapes import Type as Type

_jax_to_xla_computation_cache_elements = jax_call.traced_functions
del jax_call

__all__ = [name for name in dir() if not name.startswith("__")]

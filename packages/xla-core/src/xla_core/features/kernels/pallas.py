"""Any Pallas kernel over tensors on `xla`, and what JAX makes of one for a TPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from xla_core.base.dtypes import device_dtype
from xla_core.engine.tensor.jax_call import call_jax
from xla_core.features.kernels.platform import platform

# What trace_pallas(use_cache=True) has found, by kernel, shapes and other arguments.
trace_pallas_arg_to_payload: dict[Any, str] = {}


def jax_import_guard() -> None:
    """Nothing has to be done before jax is imported: it is what tensors live in here, and shares the device with them."""


def convert_torch_dtype_to_jax(dtype: torch.dtype) -> Any:
    """The dtype of jax arrays for a dtype of torch: 64-bit integers and floats are 32-bit ones in kernels."""
    on_device = np.dtype(device_dtype(dtype))
    return jax.numpy.dtype({"int64": "int32", "uint64": "uint32", "float64": "float32"}.get(on_device.name, on_device))


def to_jax_shape_dtype_struct(tensor: torch.Tensor) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a tensor, as JAX traces with."""
    return jax.ShapeDtypeStruct(tuple(tensor.shape), convert_torch_dtype_to_jax(tensor.dtype))


def make_kernel_from_pallas(kernel: Callable[..., Any], output_shape_dtype_fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function over xla tensors from a jax function that calls Pallas kernels; recorded like an operation, not differentiable.

    Where there is no TPU, kernels for TPU are interpreted; on a GPU, kernels are taken to be for it. Its keyword arguments
    `static_argnums` and `static_argnames` are not passed on: what is no tensor is a constant. output_shape_dtype_fn: called with the same
    arguments, gives (shape, torch dtype) pairs, which the results must have: ValueError.
    """

    def interpreted(*args: Any, **kwargs: Any) -> Any:
        pallas_tpu = importlib.import_module("jax.experimental.pallas.tpu")  # slow to import
        with pallas_tpu.force_tpu_interpret_mode():
            return kernel(*args, **kwargs)

    def call(*args: Any, static_argnums: Any = None, static_argnames: Any = None, **kwargs: Any) -> Any:
        function = interpreted if platform() == "cpu" else kernel
        results = call_jax(function, args, kwargs, getattr(kernel, "__name__", "pallas"))
        _check(results, output_shape_dtype_fn(*args))
        return results

    return call


def _check(computed: Any, expected: Sequence[tuple[Sequence[int], torch.dtype]]) -> None:
    results = computed if isinstance(computed, (tuple, list)) else [computed]
    shapes = [(tuple(one.shape), one.dtype) for one in results]
    wanted = [(tuple(shape), dtype) for shape, dtype in expected]
    if shapes != wanted:
        raise ValueError(f"the kernel gives {shapes}, output_shape_dtype_fn says {wanted}")


def trace_pallas(
    kernel: Callable[..., Any], *args: Any, static_argnums: Any = None, static_argnames: Any = None, use_cache: bool = False, **kwargs: Any
) -> tuple[str, list[torch.Tensor]]:
    """The Mosaic payload that JAX makes of a TPU kernel for arguments like these, and the tensors among them; nothing runs.

    use_cache: keep it in `trace_pallas_arg_to_payload`. Raises ValueError if the function calls no Pallas kernel.
    """
    structs = [to_jax_shape_dtype_struct(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    named = {name: to_jax_shape_dtype_struct(arg) if isinstance(arg, torch.Tensor) else arg for name, arg in kwargs.items()}
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)]
    key = (kernel, *map(str, structs), str(sorted(named.items(), key=str)), static_argnums, static_argnames) if use_cache else None
    if key in trace_pallas_arg_to_payload:
        return trace_pallas_arg_to_payload[key], tensors
    with jax.enable_x64(False):
        traced = jax.jit(kernel, static_argnums=static_argnums, static_argnames=static_argnames).trace(*structs, **named)
    payload = _payload(traced.lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo"))
    if key is not None:
        trace_pallas_arg_to_payload[key] = payload
    return payload, tensors


def _payload(module: Any) -> str:
    """The configuration of the first Mosaic call."""
    configs: list[str] = []

    def look(operations: Any) -> None:
        for operation in operations:
            if operation.operation.name == "stablehlo.custom_call" and '"tpu_custom_call"' in str(operation.attributes["call_target_name"]):
                configs.append(operation.attributes["backend_config"].value)
            for region in operation.operation.regions:
                for block in region:
                    look(block)

    look(module.body)
    if not configs:
        raise ValueError("the function calls no Pallas kernel for TPU")
    return configs[0]

"""Custom calls of targets that XLA knows by name, and operations that move tensors between host and device memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import torch
from jax.experimental.xla_metadata import set_xla_metadata
from torch import fx

from xla_core.base.dtypes import device_dtype
from xla_core.engine.tensor.jax_call import call_jax
from xla_core.ops.table import Context, OpSpec, register_op

# Kept forever: torch removes the operators when their library is collected.
_LIBRARY: Any = torch.library.Library("xla", "FRAGMENT")


def stablehlo_custom_call(
    args: Sequence[torch.Tensor],
    call_target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool = False,
    backend_config: str = "",
    api_version: int = 0,
    frontend_attributes: Mapping[str, str] | None = None,
) -> Any:
    """Record `stablehlo.custom_call @call_target` on xla tensors as one operation. Returns a tensor, or a list of several.

    output_shapes, output_dtypes: of each result. backend_config: passed to the target unchanged. api_version: XLA's; 0 means 1.
    frontend_attributes: texts by name, for passes of the compiler. The target must be registered where the program runs
    (`jax.ffi.register_ffi_target`), else compiling raises LoweringError; exporting does not need it.
    Raises ValueError for lists that differ in length.
    """
    if len(output_shapes) != len(output_dtypes):
        raise ValueError(f"custom call {call_target!r} has {len(output_shapes)} shapes and {len(output_dtypes)} dtypes of results")
    structs = tuple(
        jax.ShapeDtypeStruct(tuple(shape), device_dtype(dtype)) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
    )
    attributes = dict(frontend_attributes or {})
    function = caller(call_target, structs, has_side_effect, backend_config, api_version or 1, attributes)
    # JAX writes calls with different attributes alike; the name tells them apart.
    name = call_target + "".join(f",{key}={attributes[key]}" for key in sorted(attributes))
    identity = (call_target, structs, has_side_effect, backend_config, api_version, name)
    results = call_jax(function, tuple(args), name=name, override_hash=identity)
    return results[0] if len(results) == 1 else list(results)


def caller(
    target: str,
    structs: tuple[Any, ...],
    has_side_effect: bool = False,
    config: str = "",
    version: int = 1,
    attributes: Mapping[str, str] | None = None,
) -> Callable[..., list[Any]]:
    """Make a function of arrays that makes a custom call, with arguments as in `stablehlo_custom_call`. structs: of the results."""
    legacy = version < 4  # typed calls have attributes instead of a config text
    called = jax.ffi.ffi_call(
        target,
        structs,
        has_side_effect=has_side_effect,
        custom_call_api_version=version,
        legacy_backend_config=config if legacy else None,
    )

    def call(*arrays: Any) -> list[Any]:
        with set_xla_metadata(**(attributes or {})):
            return list(called(*arrays))

    return call


def extract_custom_call_outputs_shape_dtype(n: fx.Node) -> tuple[list[tuple[int, ...]], list[torch.dtype]]:
    """Shapes and dtypes of an FX node's results, from its `val`. Raises ValueError for a node without `val`."""
    noted = n.meta.get("val")
    if noted is None:
        raise ValueError(f"node {n.name} has no `val` among its notes: trace it with torch.export")
    values = noted if isinstance(noted, (tuple, list)) else (noted,)
    return [tuple(value.shape) for value in values], [value.dtype for value in values]


def to_host_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """The gradient of `place_to_host`: move it to the device."""
    placed: torch.Tensor = torch.ops.xla.place_to_device(grad)
    return placed


def to_device_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """The gradient of `place_to_device`: move it to the host."""
    placed: torch.Tensor = torch.ops.xla.place_to_host(grad)
    return placed


def _define(name: str, space: Any, backward: Callable[..., torch.Tensor]) -> Any:
    def lower(context: Context, t: jax.Array) -> jax.Array:
        placed: jax.Array = jax.device_put(t, space)
        return placed

    _LIBRARY.define(f"{name}(Tensor t) -> Tensor")
    _LIBRARY.impl(name, lambda t: t.clone(memory_format=torch.contiguous_format), "CompositeExplicitAutograd")
    register_op(OpSpec(f"xla::{name}", lower, notes="memory of the host or the device"))
    torch.library.register_autograd(f"xla::{name}", backward, lib=_LIBRARY)
    return getattr(torch.ops.xla, name).default


place_to_host = _define("place_to_host", jax.memory.Space.Host, to_host_backward)
place_to_device = _define("place_to_device", jax.memory.Space.Device, to_device_backward)


def _xla_custom_call(
    inputs: Sequence[torch.Tensor],
    target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool,
    backend_config: str,
    api_version: int,
    frontend_attributes: Mapping[str, str],
) -> list[torch.Tensor]:
    results = stablehlo_custom_call(
        inputs, target, output_shapes, output_dtypes, has_side_effect, backend_config, api_version, frontend_attributes
    )
    return results if isinstance(results, list) else [results]


def _xla_tpu_custom_call(
    inputs: Sequence[torch.Tensor], payload: str, output_shapes: Sequence[Sequence[int]], output_dtypes: Sequence[torch.dtype]
) -> list[torch.Tensor]:
    return _xla_custom_call(inputs, "tpu_custom_call", output_shapes, output_dtypes, False, payload, 1, {})


def _xla_register_custom_call_target(name: str, capsule: Any, platform: str) -> None:
    jax.ffi.register_ffi_target(name, capsule, platform=platform.lower(), api_version=0)

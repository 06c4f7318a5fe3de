"""Sparse, quantized and nested tensors, which xla devices do not hold: calls that make or read one are refused, with what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import OpOverload
from xla_core.engine.tensor.schema import Handler, full_name
from xla_core.ops.table import overload_named

_SPARSE = "sparse tensors: make it dense with .to_dense() on the CPU, then move it"
_QUANTIZED = (
    "quantized tensors: keep the integers and their scale in two tensors, as torch.ops.quantized_decomposed does, or call .dequantize() "
    "on the CPU"
)
_NESTED = "nested tensors: pad it with torch.nested.to_padded_tensor on the CPU, and keep the lengths or a mask beside it"
_FACTORIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "Quantized": (
        _QUANTIZED,
        ("_empty_affine_quantized", "_empty_per_channel_affine_quantized", "empty_quantized", "empty_strided", "empty.memory_format"),
    ),
    "Sparse": (_SPARSE, ("_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors", "empty.memory_format")),
    # torch composes _to_copy for this key, of parts that are dense.
    "SparseCsr": (_SPARSE, ("_to_copy", "empty.memory_format")),
}

_others, _aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")


def refusal(func: OpOverload, kind: str) -> UnsupportedOperationError:
    """The error for an operation that makes or reads a tensor that is not dense."""
    return UnsupportedOperationError(f"{full_name(func)}: xla tensors are dense, there are no {kind}")


def check_dense(func: OpOverload, result: torch.Tensor) -> None:
    """Raise UnsupportedOperationError if an operation gives a result that no xla device can hold."""
    if result.is_nested:
        raise refusal(func, _NESTED)
    if result.is_quantized:
        raise refusal(func, _QUANTIZED)
    if result.layout is not torch.strided:
        raise refusal(func, _SPARSE)


def _refuses(func: OpOverload) -> Handler:
    def refuse(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise refusal(func, _NESTED)

    return refuse


def _refuse_nested(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    raise refusal(func, _NESTED)


def _refusing(name: str, kind: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise refusal(overload_named(f"aten::{name}"), kind)

    return refuse


def register() -> None:
    """Refuse what makes tensors of these kinds on device `xla`, and what reads a nested one, which torch makes without asking a device."""
    for key, (kind, factories) in _FACTORIES.items():
        for name in factories:
            _aten.impl(name, _refusing(name, kind), f"{key}PrivateUse1")
    _others.fallback(_refuse_nested, "NestedTensorPrivateUse1")  # for each key, this takes 4 ms of the import


_MAKE_NESTED = ("_nested_tensor_from_tensor_list", "_nested_view_from_jagged")
HANDLERS: dict[str, Handler] = {name: _refuses(getattr(torch.ops.aten, name).default) for name in _MAKE_NESTED}

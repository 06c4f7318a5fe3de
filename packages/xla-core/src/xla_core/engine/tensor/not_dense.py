"""Sparse, quantized and nested tensors, which xla devices do not hold: calls that make or read one are refused, with what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import OpOverload
from xla_core.engine.tensor.schema import Handler, full_name

_SPARSE = "sparse tensors: make it dense with .to_dense() on the CPU, then move it"
_QUANTIZED = (
    "quantized tensors: keep the integers and their scale in two tensors, as torch.ops.quantized_decomposed does, or call .dequantize() "
    "on the CPU"
)
_NESTED = "nested tensors: pad it with torch.nested.to_padded_tensor on the CPU, and keep the lengths or a mask beside it"
_BY_KEY: Mapping[str, str] = {"Quantized": _QUANTIZED, "Sparse": _SPARSE, "SparseCsr": _SPARSE, "NestedTensor": _NESTED}

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


def _refusing(kind: str) -> Callable[..., Any]:
    def refuse(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
        raise refusal(func, kind)

    return refuse


def register() -> None:
    """Refuse every operation that makes or reads tensors of these kinds on device `xla`."""
    for key, kind in _BY_KEY.items():
        _others.fallback(_refusing(kind), f"{key}PrivateUse1")
    # torch composes it for this key, of parts that are dense.
    _aten.impl("_to_copy", partial(_refusing(_SPARSE), torch.ops.aten._to_copy.default), "SparseCsrPrivateUse1")


_MAKE_NESTED = ("_nested_tensor_from_tensor_list", "_nested_view_from_jagged")
HANDLERS: dict[str, Handler] = {name: _refuses(getattr(torch.ops.aten, name).default) for name in _MAKE_NESTED}

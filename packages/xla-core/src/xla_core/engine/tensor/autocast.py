"""`torch.autocast('xla')`: a kernel for each operator to which the op table gives a precision under autocast.

The kernels sit on the autocast key, which torch skips while autocast is off: they cost nothing then.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from xla_core.base.private_torch import OpOverload, excluding_key, pass_autocast_in_higher_order
from xla_core.engine.graph.pending_graph import Value
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tensor.schema import Convention, calling
from xla_core.ops.facts import Autocast
from xla_core.ops.table import AUTOCAST, overloads_of

_KEY = "AutocastPrivateUse1"
Caster = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


class _Casts:
    """A cache of casts of weights. A cast is used again for as long as autograd or the user keeps it.

    The references are weak: a cast that nothing needs is no live value at the next sync. Writing to a weight gives it another
    value, so that its old cast is never used.
    """

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()

    def get(self, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """`weight` in `dtype`."""
        behind = tensor_behind(weight)
        if behind is None or behind._view is not None:
            return weight.to(dtype)
        value = behind._storage.value
        grad = torch.is_grad_enabled()
        entry: tuple[Value, bool, weakref.ref[torch.Tensor]] | None = self._known.get(weight)
        if entry is not None and entry[0] is value and entry[1] is grad:
            cast = entry[2]()
            if cast is not None and cast.dtype is dtype:
                return cast
        cast = weight.to(dtype)
        self._known[weight] = (value, grad, weakref.ref(cast))
        return cast


_casts = _Casts()
_Library: Any = torch.library.Library  # untyped in torch
_libraries: list[torch.library.Library] = []


def _eligible(item: Any) -> bool:
    """Whether autocast may cast an argument: floating tensors on xla, except f64."""
    return isinstance(item, torch.Tensor) and item.device.type == "xla" and item.is_floating_point() and item.dtype is not torch.float64


def _cast(item: Any, dtype: torch.dtype) -> Any:
    if isinstance(item, (list, tuple)):
        return type(item)([_cast(element, dtype) for element in item])
    if not _eligible(item) or item.dtype is dtype:
        return item
    if item.is_leaf and item.requires_grad and item.dtype is torch.float32 and torch.is_autocast_cache_enabled():
        return _casts.get(item, dtype)
    return item.to(dtype)


def _all_to(dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple([_cast(arg, dtype) for arg in args]), {name: _cast(arg, dtype) for name, arg in kwargs.items()}


def lower(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, cast to the dtype that autocast was given."""
    return _all_to(torch.get_autocast_dtype("xla"), args, kwargs)


def float32(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, cast to f32."""
    return _all_to(torch.float32, args, kwargs)


def widest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, cast to the widest of their floating dtypes."""
    flat = [item for arg in (*args, *kwargs.values()) for item in (arg if isinstance(arg, (list, tuple)) else (arg,))]
    dtypes = [item.dtype for item in flat if _eligible(item)]
    if len(set(dtypes)) < 2:
        return args, kwargs
    common = dtypes[0]
    for dtype in dtypes[1:]:
        common = torch.promote_types(common, dtype)
    return _all_to(common, args, kwargs)


_CASTERS: dict[Autocast, Caster] = {Autocast.LOWER: lower, Autocast.FLOAT32: float32, Autocast.WIDEST: widest}


def _kernel(func: OpOverload, caster: Caster) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with excluding_key(_KEY):
            args, kwargs = caster(args, kwargs)
            return func(*args, **kwargs)

    return run


def overloads(operator: str) -> list[OpOverload]:
    """The overloads of `aten::op` that autocast serves: those that make new tensors, except those with names of dimensions."""
    return [
        func
        for func in overloads_of(operator.removeprefix("aten::"))
        if calling(func).convention is Convention.FUNCTIONAL and not _named(func)
    ]


def _named(func: OpOverload) -> bool:
    return "Dimname" in str(func._schema)


def register() -> None:
    """Give torch the autocast kernels of device `xla`, and bf16 as autocast's default dtype."""
    others = _Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, _KEY)
    kernels = _Library("aten", "IMPL")
    for operator, choice in AUTOCAST.items():
        for func in overloads(operator):
            kernels.impl(func, _kernel(func, _CASTERS[choice]), _KEY)
    _libraries.extend([others, kernels])
    pass_autocast_in_higher_order()
    torch.set_autocast_dtype("xla", torch.bfloat16)

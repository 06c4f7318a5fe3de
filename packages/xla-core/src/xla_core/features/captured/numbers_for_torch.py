"""Hands traced numbers to torch, whose functions take them for floats, look at some and compute with others where nobody can follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from xla_core.engine.tracing.numbers import Integer, Number

_ARITHMETIC = frozenset(
    "add add_ sub sub_ subtract subtract_ rsub __rsub__ mul mul_ multiply multiply_ div div_ divide divide_ true_divide true_divide_ "
    "__add__ __radd__ __iadd__ __sub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __rdiv__ __itruediv__ addcmul addcmul_ "
    "addcdiv addcdiv_ lerp lerp_ lt le gt ge less less_equal greater greater_equal __lt__ __le__ __gt__ __ge__".split()
)
_TAKEN_AS_THEY_ARE = frozenset(
    "clamp clamp_ clamp_min clamp_min_ clamp_max clamp_max_ clip clip_ pow pow_ __pow__ fill_ full full_like new_full masked_fill "
    "masked_fill_ where".split()
)
_SPECIAL = (0, 1, 2, -1, 0.5, -0.5, 3)
"""Exponents, among others, for which functions do something simpler."""


class TakesNumbers(TorchFunctionMode):
    """While it is entered, torch's functions take a traced number as an input of the program where they may, else as what it is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = list(_leaves((args, tuple(kwargs.values()))))
        if any(isinstance(leaf, Number) for leaf in leaves):
            name, tensors = getattr(func, "__name__", ""), [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            floats = bool(tensors) and all(tensor.is_floating_point() for tensor in tensors)
            keeps = (
                _always
                if floats and (name in _ARITHMETIC or name.startswith("_foreach_"))
                else _unless_special
                if name in _TAKEN_AS_THEY_ARE and (floats or name == "full")
                else _never
            )
            args = _plain(args, keeps)
            kwargs = {key: _plain(value, keeps) for key, value in kwargs.items()}
        return func(*args, **kwargs)


def _always(number: Number) -> bool:
    return True


def _unless_special(number: Number) -> bool:
    return not isinstance(number, Integer) and number.true not in _SPECIAL


def _never(number: Number) -> bool:
    return False


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _plain(value: Any, keeps: Callable[[Number], bool]) -> Any:
    if isinstance(value, Number):
        return value if keeps(value) else value.tracer.fix(value)
    return type(value)([_plain(item, keeps) for item in value]) if type(value) in (tuple, list) else value

"""The shapes of results by rule, for kinds of calls that torch has inferred before: a new size costs microseconds, not a millisecond.

A kind of call is an operator with the dtypes and numbers of dimensions of its tensors, which of their sizes are 0 or 1, the order of
their dimensions in memory, and its other arguments. Torch infers the first call of each kind and may refuse it; a rule holds for a kind
if it gives the same for that call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from xla_core.base.private_torch import OpOverload
from xla_core.engine.graph.aval import aval_of, row_major
from xla_core.engine.tensor.tensor import XLATensor

Shape = tuple[int, ...]
# Called with a call's arguments, torch.Size for tensors; gives the shapes of the results, or None where the sizes do not fit.
Rule = Callable[..., "list[Shape] | None"]

_MOST = 4096
_CONSTANTS = frozenset({type(None), bool, int, float, complex, str, torch.dtype, torch.memory_format, torch.layout, torch.device})
_known: dict[Any, tuple[tuple[torch.dtype, Shape], ...]] = {}
"""The dtypes of the results of each kind whose rule holds, and the order of their dimensions in memory."""


@dataclass(frozen=True, slots=True)
class RuledCall:
    """A call of an operator that has a rule. kind: of the call."""

    kind: tuple[Any, ...]
    shapes: list[Shape]

    def results(self) -> Any:
        """Meta tensors like the results; None if torch has not inferred a call of this kind yet."""
        known = _known.get(self.kind)
        if known is None:
            return None
        layouts = zip(self.shapes, known, strict=True)
        metas = tuple([aval_of(shape, dtype, strides=_dense(shape, order)).meta for shape, (dtype, order) in layouts])
        return metas[0] if len(metas) == 1 else metas

    def learn(self, result: Any) -> None:
        """Note what torch has inferred for this call; the rule holds if it says the same."""
        results = [result] if isinstance(result, torch.Tensor) else result
        if len(results) != len(self.shapes) or not all(isinstance(item, torch.Tensor) for item in results):
            return
        orders = [_order(item.stride()) for item in results]
        layouts = [(tuple(item.shape), item.stride()) for item in results]
        if layouts == [(shape, _dense(shape, order)) for shape, order in zip(self.shapes, orders, strict=True)]:
            if len(_known) >= _MOST:
                _known.clear()
            _known[self.kind] = tuple([(item.dtype, order) for item, order in zip(results, orders, strict=True)])


def ruled(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RuledCall | None:
    """A call as a rule sees it; None where there is none, the sizes do not fit, or an argument is a list of tensors, or of another type."""
    rule = _rule_of(func)
    if rule is None:
        return None
    kind: list[Any] = [func, torch.get_default_dtype()]
    sizes = [_sizes(arg, kind) for arg in args]
    named = {}
    for name, arg in kwargs.items():
        kind.append(name)
        named[name] = _sizes(arg, kind)
    if NotImplemented in kind:
        return None
    shapes = rule(*sizes, **named)
    return None if shapes is None else RuledCall(tuple(kind), shapes)


def _sizes(arg: Any, kind: list[Any]) -> Any:
    """The size of a tensor, anything else as it is; adds to `kind` what counts, NotImplemented for what has no place there."""
    cls = type(arg)
    if cls is XLATensor:
        size = arg.shape
        kind += (arg.dtype, tuple([length if length < 2 else 2 for length in size]))
        strides = arg.stride()
        if strides != row_major(size):
            kind.append(_nesting(size, strides))
        return size
    if cls in _CONSTANTS:
        kind += (cls, arg)
    elif (cls is list or cls is tuple) and all(type(item) in _CONSTANTS for item in arg):
        kind += (cls, tuple([(type(item), item) for item in arg]))
    else:
        kind.append(NotImplemented)
    return arg


def _order(strides: Sequence[int]) -> Shape:
    """The dimensions from the outermost in memory to the innermost."""
    return tuple(sorted(range(len(strides)), key=strides.__getitem__, reverse=True))


def _dense(shape: Shape, order: Shape) -> Shape:
    """The strides of a tensor without gaps whose dimensions have this order in memory."""
    strides = [0] * len(shape)
    for dim, stride in zip(order, row_major([shape[dim] for dim in order]), strict=True):
        strides[dim] = stride
    return tuple(strides)


def _nesting(shape: Sequence[int], strides: Sequence[int]) -> Any:
    """All that torch may ask of strides: the order of dimensions, and after which there are gaps; NotImplemented if elements overlap."""
    order = _order(strides)
    gaps = []
    least = 1
    for dim in reversed(order):
        if strides[dim] < least:
            return NotImplemented
        gaps.append(strides[dim] > least)
        least = strides[dim] * max(shape[dim], 1)
    return order, tuple(gaps)


@cache
def _rule_of(func: OpOverload) -> Rule | None:
    rule = _RULES.get(func.name())
    if rule is None and torch.Tag.pointwise in func.tags and [str(result.type) for result in func._schema.returns] == ["Tensor"]:
        return _broadcast
    return rule


def _broadcast(*args: Any, **kwargs: Any) -> list[Shape] | None:
    """One result, for which all tensors are broadcast."""
    shape: Shape | None = None
    for size in (*args, *kwargs.values()):
        if isinstance(size, torch.Size):
            shape = tuple(size) if shape is None else _both(shape, size)
            if shape is None:
                return None
    return None if shape is None else [shape]


def _both(one: Sequence[int], other: Sequence[int]) -> Shape | None:
    """The shape to which two shapes are broadcast; None if they cannot be."""
    if one == other:
        return tuple(one)
    if len(one) < len(other):
        one, other = other, one
    start = len(one) - len(other)
    shape = [*one[:start]]
    for first, second in zip(one[start:], other, strict=True):
        if first != second and first != 1 and second != 1:
            return None
        shape.append(second if first == 1 else first)
    return tuple(shape)


def _product(left: torch.Size, right: torch.Size, bias: torch.Size | None = None) -> list[Shape] | None:
    """A product of two matrices, or of as many on both sides; bias: is broadcast to it."""
    if not len(left) == len(right) >= 2 or left[:-2] != right[:-2] or left[-1] != right[-2]:
        return None
    shape = (*left[:-1], right[-1])
    return [shape] if bias is None or _both(shape, bias) == shape else None


def _linear(x: torch.Size, weight: torch.Size, bias: torch.Size | None = None) -> list[Shape] | None:
    if len(weight) != 2 or not x or x[-1] != weight[1] or (bias is not None and tuple(bias) != (weight[0],)):
        return None
    return [(*x[:-1], weight[0])]


def _linear_backward(x: torch.Size, grad: torch.Size, weight: torch.Size, mask: Sequence[bool]) -> list[Shape] | None:
    if not all(mask) or _linear(x, weight) != [tuple(grad)]:
        return None
    return [tuple(x), tuple(weight), (weight[0],)]


def _same(first: torch.Size, *others: Any, **named: Any) -> list[Shape] | None:
    """One result, of the shape that all tensors have."""
    tensors = [other for other in others if isinstance(other, torch.Size)]
    return [tuple(first)] if all(other == first for other in tensors) else None


def _embedding(weight: torch.Size, indices: torch.Size, *others: Any) -> list[Shape]:
    return [(*indices, *weight[1:])]


def _layer_norm(x: torch.Size, normalized: Sequence[int], weight: Any, bias: Any, eps: float) -> list[Shape] | None:
    start = len(x) - len(normalized)
    if start < 0 or any(tuple(size) != tuple(normalized) for size in (x[start:], weight, bias) if size is not None):
        return None
    of_rows = (*x[:start], *(1,) * len(normalized))
    return [tuple(x), of_rows, of_rows]


def _layer_norm_backward(
    grad: torch.Size, x: torch.Size, normalized: Sequence[int], mean: torch.Size, scale: torch.Size, weight: Any, bias: Any, mask: Any
) -> list[Shape] | None:
    forward = _layer_norm(x, normalized, weight, bias, 0.0)
    if not all(mask) or weight is None or bias is None or forward != [tuple(grad), tuple(mean), tuple(scale)]:
        return None
    return [tuple(x), tuple(weight), tuple(bias)]


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *others: Any, **named: Any) -> list[Shape] | None:
    """Attention of four dimensions without a mask, and the logarithms of its sums."""
    if any(isinstance(other, torch.Size) for other in (*others, *named.values())) or not len(query) == len(key) == len(value) == 4:
        return None
    if key[:3] != value[:3] or query[:2] != key[:2] or query[3] != key[3] or value[3] != query[3]:
        return None
    return [tuple(query), (query[0], query[1], query[2])]


_RULES: Mapping[str, Rule] = {
    "aten::mm": _product,
    "aten::bmm": _product,
    "aten::addmm": lambda bias, left, right, **named: _product(left, right, bias),
    "aten::baddbmm": lambda bias, left, right, **named: _product(left, right, bias),
    "aten::linear": _linear,
    "aten::linear_backward": _linear_backward,
    "aten::_softmax": _same,
    "aten::_log_softmax": _same,
    "aten::_softmax_backward_data": _same,
    "aten::_log_softmax_backward_data": _same,
    "aten::embedding": _embedding,
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
}

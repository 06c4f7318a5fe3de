"""Infer shapes and dtypes of results: run an overload on meta tensors, once for each signature."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from xla_core.base import metrics
from xla_core.base.errors import InternalError, UnsupportedDtypeError, UnsupportedOperationError, internal
from xla_core.base.private_torch import OpOverload, tree_flatten, tree_map, tree_unflatten
from xla_core.engine.graph.aval import Aval, aval_of, dense_strides
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.graph.signature import PLACEHOLDER, Signature
from xla_core.engine.runtime.source_location import in_optimizer, user_line
from xla_core.engine.tensor.encode import Call
from xla_core.engine.tensor.known_shapes import ruled
from xla_core.engine.tensor.limited import needs_host
from xla_core.engine.tensor.plain import as_xla
from xla_core.engine.tensor.refusals import ask_cpu, meta_of, on_cpu, on_meta
from xla_core.engine.tensor.tensor import XLATensor, wrap, wrap_all
from xla_core.ops.table import OpSpec

PLACEMENT = frozenset({"layout", "pin_memory", "memory_format", "non_blocking", "generator"})
_OF_META = frozenset({"device", "memory_format"})  # what lowerings are not given: both are in the results' avals


def signature(
    call: Call,
    recorder: Recorder,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    targets: list[Any] | None = None,
    outs: frozenset[str] = frozenset(),
) -> Signature | None:
    """The signature of a call; None if this call needs the CPU although its overload has a lowering.

    Raises whatever stock torch raises on the CPU for these arguments, with the same text; UnsupportedOperationError for
    what the platform cannot take (ops/limits.py).
    """
    begin = time.perf_counter_ns()
    try:
        made = _signature(call, args, kwargs, targets, outs)
        return None if made is None or needs_host(made, recorder, args, kwargs) else made
    finally:
        metrics.metric_add("LazyTracing", time.perf_counter_ns() - begin, metrics.Unit.DURATION_NS)


def _signature(
    call: Call,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    targets: list[Any] | None,
    outs: frozenset[str],
) -> Signature | None:
    args, kwargs = tuple(map(_as_xla, args)), {name: _as_xla(arg) for name, arg in kwargs.items()}
    targets = targets and list(map(_as_xla, targets))
    accepts = call.spec.accepts
    kwargs = {name: value for name, value in kwargs.items() if name not in PLACEMENT or name == "memory_format"}
    if accepts is not None and not accepts(*args, **{name: value for name, value in kwargs.items() if name not in _OF_META}):
        return None
    result = abstract_result(call.functional, call.spec, args, kwargs)
    if result is NotImplemented:
        return None
    if targets is not None:
        _validate(call, args, kwargs, _resized(call, targets, result) if outs else targets, outs)
    bare = isinstance(result, torch.Tensor)
    items = _flat(result) if isinstance(result, (list, tuple)) else [result]
    manual = any(type(item) is XLATensor and item._storage.value.aval.manual for item in _flat([*args, *kwargs.values()]))
    try:
        inferred = tuple([result_aval(item, manual) for item in items])
    except UnsupportedDtypeError as error:  # a TypeError, by which Python's operators would say that they do not know the operands
        raise UnsupportedOperationError(f"{call.name}: {error}") from error
    stored, pack = inferred, None if bare else _packer(result)
    if targets is not None:
        stored = inferred[: call.fresh] + _written(call, inferred[call.fresh :], targets, bool(outs), manual)
    return Signature(
        call.name,
        call.spec.lower,
        tuple(_placeholder(arg, index in call.scalars, call.exponent) for index, arg in enumerate(args)),
        {name: _placeholder(arg, name in call.scalars, call.exponent) for name, arg in kwargs.items() if name not in _OF_META},
        inferred,
        stored,
        call.spec.random,
        user_line(),
        pack,
        call.spec.has_side_effects,
        call.spec.name,
        not call.exponent and in_optimizer(),
    )


def _as_xla(item: Any) -> Any:
    """`as_xla`, also within lists."""
    return type(item)(map(_as_xla, item)) if type(item) is list or type(item) is tuple else as_xla(item)


def result_aval(item: Any, manual: bool) -> Aval | None:
    if item is None:
        return None
    if not isinstance(item, torch.Tensor):
        raise InternalError(f"an operation with a lowering returned a {type(item).__name__}, which no tensor can hold")
    return aval_of(tuple(item.shape), item.dtype, manual, dense_strides(item))


def _flat(items: Sequence[Any]) -> Iterator[Any]:
    """The items, and the items of lists and tuples among them."""
    for item in items:
        yield from item if isinstance(item, (list, tuple)) else (item,)


def _packer(result: Any) -> Callable[[list[Any]], Any]:
    """A function that makes a caller's results, nested like `result`, from values."""
    if isinstance(result, (tuple, list)) and all(isinstance(item, torch.Tensor) for item in result):
        return wrap_all  # a list will do for a tuple: torch unpacks either
    if isinstance(result, (tuple, list)) and all(isinstance(item, torch.Tensor) for item in _flat(result)):
        parts: list[int | slice] = []
        end = 0
        for item in result:
            start, end = end, end + (1 if isinstance(item, torch.Tensor) else len(item))
            parts.append(start if isinstance(item, torch.Tensor) else slice(start, end))

        def pack_lists(values: list[Any]) -> Any:
            tensors = wrap_all(values)
            return [tensors[part] for part in parts]

        return pack_lists

    _, tree = tree_flatten(result)

    def pack(values: list[Any]) -> Any:
        return tree_unflatten([None if value is None else wrap(value) for value in values], tree)

    return pack


def _written(call: Call, inferred: tuple[Aval | None, ...], targets: list[Any], resize: bool, manual: bool) -> tuple[Aval | None, ...]:
    """The avals of the mutated arguments after the call: their own dtype, and their own shape unless out= resizes them."""
    flat = [item for target in targets for item in (target if isinstance(target, (list, tuple)) else [target])]
    internal(len(flat) == len(inferred), lambda: f"{call.name} writes {len(flat)} tensors, its functional form gives {len(inferred)}")
    return tuple(
        None if target is None or aval is None else _of_target(target, aval, resize, manual)
        for target, aval in zip(flat, inferred, strict=True)
    )


def _of_target(target: torch.Tensor, result: Aval, resize: bool, manual: bool) -> Aval:
    if resize and result.shape != tuple(target.shape):
        return aval_of(result.shape, target.dtype, manual, result.strides)
    return aval_of(tuple(target.shape), target.dtype, manual, dense_strides(target))


def _placeholder(arg: Any, dynamic: bool, exponent: bool) -> Any:
    """`arg` with PLACEHOLDER where an operand goes. Must agree with encode.py on which arguments are operands."""
    if isinstance(arg, torch.Tensor):
        return PLACEHOLDER
    if isinstance(arg, (list, tuple)):
        return [_placeholder(item, dynamic, exponent) for item in arg]
    if dynamic and (type(arg) is float or (type(arg) is int and not exponent and -(1 << 63) <= arg < 1 << 63)):
        return PLACEHOLDER
    return arg


def abstract_result(func: OpOverload, spec: OpSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of `func`, whose row is `spec`, on meta tensors; where these fail, on CPU tensors of zeros. Raises what the CPU raises.

    NotImplemented if the shape depends on data, of which zeros say nothing.
    """
    known = ruled(func, args, kwargs)
    if known is not None and (result := known.results()) is not None:
        return result
    try:
        result = on_meta(func, args, kwargs, meta_of) if spec.shapes is None else spec.shapes(*tree_map(meta_of, args))
    except Exception:  # whatever it is, the CPU's error is better
        result = on_cpu(func, args, kwargs)
        return NotImplemented if torch.Tag.dynamic_output_shape in func.tags else result
    ask_cpu(func, spec.beyond_cpu, args, kwargs, result)
    if known is not None:
        known.learn(result)
    return result


def _resized(call: Call, targets: list[Any], result: Any) -> list[Any]:
    """The out= tensors, and others of the results' shapes for those that will be resized: torch would warn of stand-ins only once."""
    results = _flat(result) if isinstance(result, (list, tuple)) else iter([result])
    results = islice(results, call.fresh, None)

    def fitting(target: Any) -> Any:
        if isinstance(target, (list, tuple)):
            return [fitting(item) for item in target]
        shown = next(results)
        if target is None or shown is None or target.shape == shown.shape:
            return target
        return torch.empty(shown.shape, dtype=target.dtype, device=target.device)

    return [fitting(target) for target in targets]


def _validate(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], targets: list[Any], outs: frozenset[str]) -> None:
    """Let torch check the in-place or out= form itself: result casts, shapes, overlaps."""
    written = {id(item) for target in targets for item in (target if isinstance(target, (list, tuple)) else [target])}

    def fresh_meta(item: Any) -> Any:
        if type(item) is XLATensor and id(item) in written:
            return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device="meta")
        return meta_of(item)

    names = {argument.name for argument in call.func._schema.arguments}
    named = {name: value for name, value in kwargs.items() if name in names}  # without the dtype of what is made for `out`
    if outs:
        named.update(zip(call.mutated, targets, strict=True))
    try:
        on_meta(call.func, args, named, fresh_meta)
    except Exception:  # as in abstract_result
        on_cpu(call.func, args, named)
    else:
        ask_cpu(call.func, call.spec.beyond_cpu, args, named, ())


def out_key(targets: list[Any]) -> tuple[Any, ...]:
    """Key part of the out= tensors: shapes, strides and dtypes."""
    flat = [item for target in targets for item in (target if isinstance(target, (list, tuple)) else [target])]
    return tuple(None if item is None else (tuple(item.shape), item.stride(), item.dtype) for item in flat)

"""Evaluate programs for the CPU by torch's own kernels, operation by operation, over the memory of the buffers: nothing compiles.

An operation that torch's kernels do not serve (random numbers, what the user lowered) is evaluated as in `reference.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import torch

from xla_core.base.arrays import to_numpy, to_torch
from xla_core.base.dtypes import natural_dtype, torch_dtype
from xla_core.base.errors import XlaError
from xla_core.base.private_torch import hidden_from_modes, without_torch_function
from xla_core.engine.compile.emit import Constants, evaluate, leaves_of
from xla_core.engine.compile.reference import operators, reference
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import ScalarKind
from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.signature import Signature, fill
from xla_core.engine.placement.layout import Layout
from xla_core.engine.placement.placement import Placement
from xla_core.ops.checks import NOTHING, Check
from xla_core.ops.shape.view_steps import ReadView, ViewStep, WriteView
from xla_core.ops.shape.views import VIEWS
from xla_core.ops.table import Context, overload_named

_OF_ORDER = ("as_strided", "view.dtype", "view_as_complex")
"""Views that depend on the order of their base in memory."""
_RESHAPED = ("view", "_reshape_alias")
_INNER = re.compile("::_|::native_|forward|backward")
"""Operators that only torch itself calls: some expect their tensors as its other kernels make them, in order."""
_SHOWN = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
                    torch.float32, torch.float64, torch.complex64, torch.complex128})  # fmt: skip
"""Dtypes of tensors that can show the memory of a buffer."""


class _WrongData(XlaError):
    """A check of data found something: the whole program is evaluated with all its checks, whose results say what."""


def can_evaluate_by_torch(graph: Graph) -> bool:
    """Whether the device holds all values of a graph in the dtypes that torch has for them (with `XLA_USE_BF16` it does not)."""
    return all(aval is None or aval.physical == natural_dtype(aval.dtype) for aval in graph.parts.avals)


def by_torch(graph: Graph, constants: Constants, placement: Placement, layout: Layout, checked: bool) -> Callable[..., list[Any]]:
    """The graph as a function over `(*buffers, *words)`, like `jitted`, but evaluated by torch's kernels, without donation."""
    count = len(graph.parts.leaves)

    def run(*arguments: Any) -> list[Any]:
        try:
            with ExitStack() as around:
                for context in _ALONE:
                    around.enter_context(context())
                around.enter_context(jax.default_device(placement.device))
                tensors = [_tensor(buffer) for buffer in arguments[:count]]
                leaves = leaves_of(graph, constants, (*tensors, *arguments[count:]), _numbers)
                leaves = [_tensor(leaf) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
                values = evaluate(graph, leaves, placement.context, emitter=partial(_emit, checked=checked), frees=True)
                memory = {_address(tensor) for tensor in tensors}
                results = [to_numpy(_alone(values[slot], memory)) for slot in graph.outs]
        except _WrongData:
            return reference(graph, constants, placement, layout, checked)(*arguments)
        return [placement.put(array) for array in (*results, np.zeros((), np.uint8))]

    return run


# The user's modes must not see these calls, nor change what they do.
_ALONE: Sequence[Callable[[], AbstractContextManager[Any]]] = (
    partial(hidden_from_modes, all_of_them=True),
    without_torch_function,
    torch.no_grad,
    partial(torch.autocast, "cpu", enabled=False),
)


def _numbers(packed: Sequence[Any], numbers: Mapping[ScalarKind, int]) -> dict[ScalarKind, list[Any]]:
    """The numbers in the array behind the buffers (words.py): floats and integers as Python has them, seeds as two words."""
    bits = np.concatenate([np.asarray(array).reshape(-1).view(np.uint64) for array in packed]) if packed else np.empty(0, np.uint64)
    rows: dict[ScalarKind, list[Any]] = {}
    start = 0
    for kind, count in numbers.items():
        row = bits[start : start + count]
        start += count
        if kind is ScalarKind.SEED:
            rows[kind] = list(row.view(np.uint32).reshape(-1, 2))
        else:
            rows[kind] = row.view(np.float64 if kind is ScalarKind.FLOAT else np.int64).tolist()
    return rows


def _tensor(array: Any) -> torch.Tensor:
    """A tensor over the memory of a buffer on the CPU, to be read only; of its values where torch cannot show that memory."""
    dtype = torch_dtype(array.dtype)
    if dtype not in _SHOWN:
        return to_torch(np.asarray(array), dtype)
    array.block_until_ready()
    return torch.utils.dlpack.from_dlpack(array)


def _alone(tensor: torch.Tensor, memory: set[int]) -> torch.Tensor:
    """A result with memory of its own, all of it in use, so that its buffer can be donated. memory: of the arguments and other results."""
    tensor = tensor.resolve_conj().resolve_neg()
    if not tensor.is_contiguous() or tensor.untyped_storage().nbytes() != tensor.nbytes or _address(tensor) in memory:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    memory.add(_address(tensor))
    return tensor


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _emit(signature: Signature, operands: list[Any], context: Context, checks: list[Check] | None = None, *, checked: bool) -> list[Any]:
    """The results of one operation, tensors, over tensors and numbers. Raises _WrongData. checked: look at its checks of data."""
    kernel = None if signature.random or signature.has_side_effects or signature.has_bodies else _kernel(signature)
    if kernel is not None:
        try:
            results = kernel(signature, operands)
            flat = [item for part in _listed(results) for item in _listed(part)]
            return [_fitted(result, out) for result, out in zip(flat, signature.outs, strict=True)]
        except (RuntimeError, IndexError, ValueError, TypeError):  # no kernel for a dtype, or wrong data: the lowering knows both
            pass
    found: list[Check] | None = [] if checked else None
    computed = operators.emit(signature, [_array(operand) for operand in operands], context, found)
    if any(check.value.item() != NOTHING[check.value.dtype] for check in found or ()):
        raise _WrongData(signature.name)
    # Copies: two buffers over one memory would count twice in the memory in use.
    return [None if array is None else to_torch(np.asarray(array), torch_dtype(array.dtype)) for array in computed]


def _listed(results: Any) -> Sequence[Any]:
    return results if isinstance(results, (list, tuple)) else [results]


def _array(operand: Any) -> jax.Array:
    return jax.numpy.asarray(to_numpy(operand) if isinstance(operand, torch.Tensor) else np.asarray(operand))


def _fitted(result: torch.Tensor | None, out: Aval | None) -> torch.Tensor | None:
    """A result in the dtype of its slot. Raises ValueError for one of another shape."""
    if out is None or result is None:
        return None
    if result.shape != out.shape:
        raise ValueError(f"torch gave {tuple(result.shape)}, inferred was {out}")
    if result.dtype is not out.dtype:
        result = result.to(out.dtype)
    return result.resolve_conj().resolve_neg() if result.is_conj() or result.is_neg() else result


_Kernel = Callable[[Signature, list[Any]], Any]


def _kernel(signature: Signature) -> _Kernel | None:
    """How torch computes an operation; None if only its lowering says what it is."""
    if signature.target == "aten::_efficientzerotensor" or signature.name == "xla.empty":
        return _zeros
    # Of grouped_mm torch leaves rows in no group as they happen to be.
    if signature.target.startswith("aten::") and "grouped_mm" not in signature.target and _is_ours(signature.lower):
        return _called
    if isinstance(signature.lower, ReadView):
        return _read
    # Where a view shows an element twice, the lowering knows which of the two was written.
    if isinstance(signature.lower, WriteView) and not any(VIEWS[step.name].overlaps for step in signature.lower.steps):
        return _written
    return None


@cache
def _is_ours(lower: Any) -> bool:
    """Whether a lowering is one of this package, which does what torch does; a user may have put another in its place."""
    while isinstance(lower, partial):
        lower = lower.func
    return str(getattr(lower, "__module__", "")).startswith("xla_core.")


def _zeros(signature: Signature, operands: list[Any]) -> torch.Tensor:
    """Zeros in memory; torch's own kernel gives a tensor without any, which others do not all take."""
    [out] = signature.outs
    return torch.zeros(out.shape, dtype=out.dtype, device="cpu")  # type: ignore[union-attr]


def _called(signature: Signature, operands: list[Any]) -> Any:
    if _INNER.search(signature.target):
        operands = [operand.contiguous() if isinstance(operand, torch.Tensor) else operand for operand in operands]
    remaining = iter(operands)
    args = [fill(arg, remaining) for arg in signature.args]
    kernel = _COMPOSED.get(signature.target) or overload_named(signature.target)
    return kernel(*args, **{name: fill(arg, remaining) for name, arg in signature.kwargs.items()})


def _linear_backward(x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, mask: Sequence[bool]) -> Sequence[torch.Tensor | None]:
    rows, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return grad @ weight if mask[0] else None, grads.t() @ rows if mask[1] else None, grads.sum(0) if mask[2] else None


# Operators that torch has no kernel for on the CPU, or one that only takes tensors as its own call would make them.
_COMPOSED: Mapping[str, Callable[..., Any]] = {
    "aten::linear_backward": _linear_backward,
    "aten::_unsafe_view": lambda x, size: x.reshape(size),
}


def _read(signature: Signature, operands: list[Any]) -> torch.Tensor:
    base, *offsets = operands
    for step, offset in _placed(signature, offsets):
        if step.name in _OF_ORDER:
            base = base.contiguous()
        base = base.reshape(step.shape) if step.name in _RESHAPED else _viewed(base, step, offset).resolve_conj().resolve_neg()
    return base  # type: ignore[no-any-return]


def _written(signature: Signature, operands: list[Any]) -> torch.Tensor:
    base, part, *offsets = operands
    written = view = base.clone(memory_format=torch.contiguous_format)
    for step, offset in _placed(signature, offsets):
        # Raises where only a copy has this shape, which the lowering can write through.
        view = view.view(step.shape) if step.name in _RESHAPED else _viewed(view, step, offset)
    view.copy_(part)
    return written  # type: ignore[no-any-return]


def _placed(signature: Signature, offsets: Iterable[int]) -> Iterator[tuple[ViewStep, int]]:
    """The steps of a view with where each begins."""
    steps: tuple[ViewStep, ...] = signature.lower.steps  # type: ignore[attr-defined]
    remaining = iter(offsets)
    return ((step, 0 if step.offset is None else next(remaining)) for step in steps)


def _viewed(base: torch.Tensor, step: ViewStep, offset: int) -> torch.Tensor:
    args = step.args
    if step.name == "select.int":
        args = (*args, offset)
    elif step.name == "slice.Tensor":
        dim, gap = args
        args = (dim, offset, offset + step.shape[dim] * gap, gap)
    view: torch.Tensor = overload_named(f"aten::{step.name}")(base, *args)
    return view

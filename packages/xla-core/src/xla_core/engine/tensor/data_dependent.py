"""Operations whose result's shape depends on data: nonzero, reads by a mask, unique, bincount.

The device computes as many elements as there can be, and how many there are. Reading that count costs one partial execution; the
results are then cut to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from xla_core.base import metrics
from xla_core.base.errors import UnsupportedOperationError
from xla_core.engine.graph.pending_graph import Recorder, Value
from xla_core.engine.runtime.client import placement_of
from xla_core.engine.runtime.source_location import user_line
from xla_core.engine.runtime.sync import compute, read_many
from xla_core.engine.tensor.schema import Handler
from xla_core.engine.tensor.values import CUT_BYTES, value_of

aten = torch.ops.aten


def refuse_planned(recorder: Recorder, values: Sequence[Value]) -> None:
    """Raise UnsupportedOperationError, with the user's line, for a device whose data nobody has, and so no shape that depends on data.

    values: what the shape is found in. It is compiled first, so that the plan has what the device does until then.
    """
    target = placement_of(recorder).target
    if not target.attached:
        compute(values)
        raise UnsupportedOperationError(
            f"the shape of a result depends on data, and nothing runs on the target {target.name}: at {user_line() or 'an unknown line'}. "
            "Give it a fixed shape: torch.where, nonzero_static(size=…), masked sums, padding"
        )


def _read(tensors: Sequence[Tensor], beside: Sequence[Tensor] = ()) -> list[Tensor]:
    values = [value_of(tensor) for tensor in tensors]  # type: ignore[arg-type]
    along = [value_of(tensor) for tensor in beside]  # type: ignore[arg-type]
    refuse_planned(values[0].recorder, [*values, *along])
    return read_many(values, along)


def _cut(padded: Sequence[Tensor], count: Tensor, dim: int = 0) -> list[Tensor]:
    """The first `count` slices of each tensor along `dim`, after one execution that computes all of them."""
    length = int(_read([count], padded)[0])
    cut = [aten.slice.Tensor(tensor, dim, 0, length) for tensor in padded]
    # A small part is a view, which is read without another program; a large one must not keep all of the tensor alive.
    return [
        part if tensor.nbytes <= CUT_BYTES or part.shape == tensor.shape else part.clone() for part, tensor in zip(cut, padded, strict=True)
    ]


def _positions(mask: Tensor) -> Tensor:
    """Flat positions of the set elements, then zeros: shape (elements of mask,)."""
    return _flat(aten.nonzero_static(_flat(mask), size=mask.numel(), fill_value=0))


def _flat(x: Tensor) -> Tensor:
    return _shaped(x, [-1])


def _shaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The elements in another shape. A contiguous clone can be viewed in any; it costs nothing where `x` is not a view of a part."""
    shaped: Tensor = aten.view(aten.clone(x, memory_format=torch.contiguous_format), shape)
    return shaped


def nonzero(x: Tensor) -> Tensor:
    """Positions of the elements that are not zero: shape (count, dimensions), int64."""
    if not x.numel():
        return x.new_zeros((0, x.dim()), dtype=torch.int64)
    return _cut([aten.nonzero_static(x, size=x.numel())], aten.count_nonzero(x))[0]


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements of `x` where `mask` is set, both broadcast. Raises RuntimeError if `mask` is not boolean."""
    if mask.dtype is not torch.bool:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, found {mask.dtype}: convert it with mask.bool()")
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    if not math.prod(shape):
        return x.new_empty(0)
    wide = aten.expand(mask, shape).clone()
    if mask.is_cpu:  # its values are on the host
        picked: Tensor = aten.take(aten.expand(x, shape), wide.flatten().nonzero().flatten())
        return picked
    return _cut([aten.take(aten.expand(x, shape), _positions(wide))], aten.count_nonzero(wide))[0]


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Advanced indexing with masks among the indices."""
    present = [dim for dim, tensor in enumerate(indices) if tensor is not None]
    if len(present) == 1:
        return _by_mask(x, present[0], indices[present[0]])  # type: ignore[arg-type]
    positions: list[Tensor | None] = []
    for tensor in indices:
        if tensor is None or tensor.dtype is not torch.bool:
            positions.append(tensor)
        else:
            _check_mask(x, tensor, len(positions))
            positions.extend(aten.unbind.int(nonzero(tensor), 1))
    result: Tensor = aten.index.Tensor(x, positions)
    return result


def _check_mask(x: Tensor, mask: Tensor, dim: int) -> None:
    for k, size in enumerate(mask.shape):
        if dim + k >= x.dim():
            raise IndexError(f"too many indices for tensor of dimension {x.dim()}")
        if size != x.shape[dim + k]:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {k} does not match "
                f"the shape of the indexed tensor {list(x.shape)} at index {dim + k}"
            )


def _by_mask(x: Tensor, dim: int, mask: Tensor) -> Tensor:
    """`x` read by one mask over its dimensions from `dim` on."""
    _check_mask(x, mask, dim)
    rows = _shaped(x, [*x.shape[:dim], mask.numel(), *x.shape[dim + mask.dim() :]])
    if not mask.numel():
        return rows
    return _cut([aten.index_select(rows, dim, _positions(mask))], aten.count_nonzero(mask), dim)[0]


def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Count each number in a vector of non-negative integers, or sum its weights."""
    if x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool:
        raise NotImplementedError(f"bincount is not implemented for {x.dtype}: it counts integers")
    if x.dim() != 1:
        raise RuntimeError(f"bincount only supports 1-d non-negative integral inputs, found shape {tuple(x.shape)}")
    if minlength < 0:
        raise RuntimeError(f"minlength should be >= 0, found {minlength}")
    if weights is not None and weights.shape != x.shape:
        raise RuntimeError(
            f"weights should be 1-d and have the same length as input, found shapes {tuple(weights.shape)} and {tuple(x.shape)}"
        )
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    if not x.numel():
        return x.new_zeros(minlength, dtype=torch.int64)
    low, high = (int(bound) for bound in _read([aten.amin(x), aten.amax(x)]))
    if low < 0:
        raise RuntimeError(f"bincount only supports 1-d non-negative integral inputs, found {low}")
    counts = x.new_zeros(max(high + 1, minlength), dtype=dtype)
    ones = aten.ones_like(x, dtype=dtype) if weights is None else aten._to_copy(weights, dtype=dtype)
    result: Tensor = aten.index_add(counts, 0, aten._to_copy(x, dtype=torch.int64), ones)
    return result


def repeat_interleave(repeats: Tensor, output_size: int | None = None) -> Tensor:
    """Each position, repeated as often as `repeats` says; `output_size`, the sum of `repeats`, saves the read."""
    if output_size is None:
        # Their sum stands first, so that it and the smallest are results of one read.
        counts = aten.cat([aten.view(aten.sum(repeats), [1]), repeats.new_zeros(1), repeats])
        output_size, low = (int(scalar) for scalar in _read([aten.select.int(counts, 0, 0), aten.amin(counts)]))
        if low < 0:
            raise RuntimeError(f"repeats can not be negative, found {low}")
    result: Tensor = aten.repeat_interleave.Tensor(repeats, output_size=output_size)
    return result


def _groups(rows: Tensor, positions: Tensor | None, inverse: bool, counts: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Runs of equal rows of `rows` (n, m), n > 0: the first row of each, the run that each row is in, the lengths of the runs.

    positions: the position of row i before sorting, at which its run is given back.
    """
    length = rows.shape[0]
    changes = aten.any.dim(aten.ne.Tensor(aten.slice.Tensor(rows, 0, 1), aten.slice.Tensor(rows, 0, 0, length - 1)), 1)
    first = aten.cat([rows.new_ones(1, dtype=torch.bool), changes])
    run = aten.sub.Scalar(aten.cumsum(first, 0), 1)
    padded = [aten.index_select(rows, 0, _positions(first))]
    if counts:
        padded.append(aten.index_add(aten.zeros_like(run), 0, run, aten.ones_like(run)))
    cut = _cut(padded, aten.count_nonzero(first))
    back = run.new_empty(0) if not inverse else run if positions is None else aten.index_put(aten.zeros_like(run), [positions], run)
    return cut[0], back, cut[1] if counts else run.new_empty(0)


def _unique_elements(x: Tensor, ordered: bool, inverse: bool, counts: bool) -> tuple[Tensor, Tensor, Tensor]:
    if not x.numel():
        none = x.new_empty(0, dtype=torch.int64)
        return x.new_empty(0), x.new_empty(x.shape if inverse else 0, dtype=torch.int64), none
    flat, positions = _flat(x), None
    if ordered:
        flat, positions = aten.sort.stable(flat, stable=True)
    elements, back, lengths = _groups(aten.unsqueeze(flat, 1), positions, inverse, counts)
    return _flat(elements), _shaped(back, x.shape) if inverse else back, lengths


def _unique_slices(x: Tensor, dim: int, ordered: bool, inverse: bool, counts: bool) -> tuple[Tensor, Tensor, Tensor]:
    x.size(dim)  # raises what torch raises for a dimension that is not there
    dim %= x.dim()
    if not x.numel():
        if x.shape[dim] or sum(size == 0 for size in x.shape) > 1:
            raise RuntimeError(
                f"There are 0 sized dimensions, and they aren't selected, so unique cannot be applied: shape {tuple(x.shape)}"
            )
        none = x.new_empty(0, dtype=torch.int64)
        return x.clone(), none, none
    shape, positions = (x.shape[dim], *x.shape[:dim], *x.shape[dim + 1 :]), None
    front = [dim, *range(dim), *range(dim + 1, x.dim())]
    rows = _shaped(aten.permute(x, front), [shape[0], -1])
    if ordered:
        positions = torch.ops.xla_core.lexsort(rows)
        rows = aten.index_select(rows, 0, positions)
    unique_rows, back, lengths = _groups(rows, positions, inverse, counts)
    back_again = [*range(1, dim + 1), 0, *range(dim + 1, x.dim())]
    return aten.permute(_shaped(unique_rows, [-1, *shape[1:]]), back_again).clone(), back, lengths


def unique(x: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    """The distinct elements in rising order; always sorted, as on the CPU."""
    return _unique_elements(x, True, return_inverse, False)[:2]


def unique2(x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct elements in rising order, the index of each element of `x` among them, and how often each occurs."""
    return _unique_elements(x, True, return_inverse, return_counts)


def unique_dim(
    x: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct slices along `dim` in lexicographic order."""
    return _unique_slices(x, dim, True, return_inverse, return_counts)


def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The first of each run of equal elements, or of equal slices along `dim`."""
    if dim is None:
        return _unique_elements(x, False, return_inverse, return_counts)
    return _unique_slices(x, dim, False, return_inverse, return_counts)


def unique_dim_consecutive(x: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The first of each run of equal slices along `dim`."""
    return _unique_slices(x, dim, False, return_inverse, return_counts)


def _counted(name: str, function: Callable[..., Any]) -> Handler:
    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        metrics.counter_add(f"xla::{name}")
        return function(*args, **kwargs)

    return run


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "nonzero": nonzero,
    "masked_select": masked_select,
    "bincount": bincount,
    "_unique": unique,
    "_unique2": unique2,
    "unique_dim": unique_dim,
    "unique_consecutive": unique_consecutive,
    "unique_dim_consecutive": unique_dim_consecutive,
}
HANDLERS: dict[str, Handler] = {name: _counted(name, function) for name, function in _FUNCTIONS.items()}
# Operations with a lowering: these serve the calls whose result has a shape that depends on data.
REFUSED: dict[str, Callable[..., Any]] = {"index.Tensor": index, "repeat_interleave.Tensor": repeat_interleave}

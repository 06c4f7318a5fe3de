"""Collectives as `jax.lax`, inside a program that runs over the mesh of all replicas.

Collectives keep their order by data: each takes a token from the one before and makes a token for the next. Replicas may run
different operations between equal collectives, and XLA orders what does not depend on each other as it likes, so that without
it two replicas could meet in different collectives. The token is zero, but XLA cannot know: all operands depend on it, because XLA
would drop a collective over a constant, which it takes to be the same on all replicas.

Tensors of one dtype travel together in one flat array: a collective costs the same for one as for a hundred small ones.
On CPU a large array travels in parts (`_by_parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.abi import REPLICA_AXIS, Context, scalar

Ints = Sequence[int]
IndexGroups = list[list[int]] | None
# On CPU, up to how many bytes a collective takes at once, and of how many the parts of a larger one are.
_WHOLE_BYTES, _PART_BYTES = 24 << 20, 8 << 20


def index_groups(members: Ints, sizes: Ints) -> IndexGroups:
    """Groups as jax takes them; None for one of all."""
    groups, start = [], 0
    for size in sizes:
        groups.append(list(members[start : start + size]))
        start += size
    return groups or None


def _tied(flat: jax.Array, token: jax.Array) -> jax.Array:
    """The same values, of which XLA knows nothing, and which are there only after the token."""
    bits = _to_bits(flat)
    mask = lax.broadcast(lax.convert_element_type(token, bits.dtype), bits.shape)
    held = _from_bits(lax.bitwise_xor(bits, mask), flat.dtype)
    apart: jax.Array = lax.optimization_barrier(held)
    return apart


def _token_after(flat: jax.Array, token: jax.Array) -> jax.Array:
    first = lax.squeeze(lax.slice(flat, (0,), (1,)), (0,))
    return lax.bitwise_and(token, lax.convert_element_type(first != 0, token.dtype))


def _flat(x: jax.Array) -> jax.Array:
    return lax.reshape(x, (x.size,))


# From a flat array and its token to what a collective makes of it.
Step = Callable[[jax.Array], jax.Array]


def _in_order(flat: jax.Array, token: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
    """One collective over a flat array that is not empty; its result, flat, and the next token."""
    result = step(_tied(flat, token))
    return result, _token_after(_flat(result), token)


def _elementwise(flat: jax.Array, token: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
    """As `_in_order`, of a step whose result has an element for each one of its operand, made of that one on all replicas."""
    whole = partial(_in_order, step=step)
    if flat.size * flat.dtype.itemsize <= _WHOLE_BYTES:
        return whole(flat, token)
    made: tuple[jax.Array, jax.Array] = lax.platform_dependent(flat, token, cpu=partial(_by_parts, step=step), default=whole)
    return made


def _by_parts(flat: jax.Array, token: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
    """As `_in_order`, one part after the other and in place.

    On CPU a collective makes a copy of its operand. The allocator gives memory of more than 32 MiB back to the system after each run,
    and touching it anew costs as much as sending it; that for a part stays with the process.
    """
    size = _PART_BYTES // flat.dtype.itemsize

    def turn(number: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        flat, token = state
        start = (number * size,)
        result, token = _in_order(lax.dynamic_slice(flat, start, (size,)), token, step)
        return lax.dynamic_update_slice(flat, result, start), token

    count, rest = divmod(flat.size, size)
    flat, token = lax.fori_loop(0, count, turn, (flat, token))
    if rest:
        result, token = _in_order(lax.slice(flat, (count * size,), (flat.size,)), token, step)
        flat = lax.dynamic_update_slice(flat, result, (count * size,))
    return flat, token


def _together(inputs: Sequence[jax.Array], token: jax.Array, step: Callable[[Sequence[jax.Array], jax.Array], Any]) -> Any:
    """Apply `step(tensors, token) -> (results, token)` to the tensors of each dtype; results in the order of the inputs."""
    results: list[Any] = [None] * len(inputs)
    kinds: dict[np.dtype, list[int]] = {}
    for place, x in enumerate(inputs):
        kinds.setdefault(x.dtype, []).append(place)
    for places in kinds.values():
        made, token = step([inputs[place] for place in places], token)
        for place, result in zip(places, made, strict=True):
            results[place] = result
    return results, token


def _join(inputs: Sequence[jax.Array]) -> jax.Array:
    return lax.concatenate([_flat(x) for x in inputs], 0) if len(inputs) > 1 else _flat(inputs[0])


def _part(flat: jax.Array, like: Sequence[jax.Array]) -> list[jax.Array]:
    """A flat array cut into pieces shaped as `like`."""
    parts, start = [], 0
    for x in like:
        parts.append(lax.reshape(lax.slice(flat, (start,), (start + x.size,)), x.shape))
        start += x.size
    return parts


def reduced(x: jax.Array, reduction: str, groups: IndexGroups) -> jax.Array:
    """The reduction of `x` over the replicas of a group."""
    logical = x.dtype == np.bool_
    if reduction in ("sum", "or") and logical:
        reduction = "max"
    if reduction in ("mul", "and") and logical:
        reduction = "min"
    if reduction == "sum":
        return lax.psum(x, REPLICA_AXIS, axis_index_groups=groups)  # type: ignore[no-any-return]
    if reduction in ("max", "min"):
        return _extreme(x, reduction == "max", groups)
    return _folded(x, reduction, groups)


def _extreme(x: jax.Array, largest: bool, groups: IndexGroups) -> jax.Array:
    """The largest or smallest; NaN wins, as in torch. Floats travel as integers of the same order, since backends disagree on NaN."""
    extreme: Callable[..., jax.Array] = lax.pmax if largest else lax.pmin
    if not jax.numpy.issubdtype(x.dtype, np.floating):
        return extreme(x, REPLICA_AXIS, axis_index_groups=groups)
    whole = np.dtype(f"int{8 * x.dtype.itemsize}")
    limits = np.iinfo(whole)
    nan = lax.full(x.shape, limits.max if largest else limits.min, whole)
    keys = lax.select(x != x, nan, _swap_negative(lax.bitcast_convert_type(x, whole)))
    return lax.bitcast_convert_type(_swap_negative(extreme(keys, REPLICA_AXIS, axis_index_groups=groups)), x.dtype)


def _swap_negative(bits: jax.Array) -> jax.Array:
    """Between the bits of floats and integers in the order of the floats."""
    limits = np.iinfo(bits.dtype)
    signs = lax.shift_right_arithmetic(bits, lax.full_like(bits, limits.bits - 1))
    return lax.bitwise_xor(bits, lax.bitwise_and(signs, lax.full_like(bits, limits.max)))


def _folded(x: jax.Array, reduction: str, groups: IndexGroups) -> jax.Array:
    """Reductions that not all backends have: gather, then fold. Groups are of any size."""
    fold: dict[str, tuple[Any, Any]] = {
        "mul": (lax.mul, 1),
        "and": (lax.bitwise_and, -1 if jax.numpy.issubdtype(x.dtype, np.signedinteger) else np.iinfo(x.dtype).max)
        if jax.numpy.issubdtype(x.dtype, np.integer)
        else (None, None),
        "or": (lax.bitwise_or, 0),
    }
    combine, unit = fold[reduction]
    everyone = lax.all_gather(x, REPLICA_AXIS)
    if groups is not None:
        inside = jax.numpy.asarray(_membership(groups, everyone.shape[0]))[lax.axis_index(REPLICA_AXIS)]
        shape = (everyone.shape[0], *([1] * x.ndim))
        everyone = jax.numpy.where(inside.reshape(shape), everyone, lax.full_like(everyone, unit))
    folded: jax.Array = lax.reduce(everyone, np.asarray(unit, x.dtype), combine, (0,))
    return folded


def _membership(groups: list[list[int]], count: int) -> np.ndarray[Any, Any]:
    """Row by ordinal: who shares its group."""
    table = np.zeros((count, count), np.bool_)
    for group in groups:
        for ordinal in group:
            table[ordinal, group] = True
    return table


def _scaled(x: jax.Array, scale: Any) -> jax.Array:
    if isinstance(scale, (int, float)) and scale == 1:
        return x
    if jax.numpy.issubdtype(x.dtype, np.inexact):
        return x * scalar(scale, x.dtype)
    wide = lax.convert_element_type(x, np.float64 if x.dtype.itemsize == 8 else np.float32)
    return lax.convert_element_type(wide * scalar(scale, wide.dtype), x.dtype)


def all_reduce(
    context: Context, inputs: list[jax.Array], token: jax.Array, reduction: str, scale: Any, members: Ints, sizes: Ints
) -> list[jax.Array]:
    groups = index_groups(members, sizes)

    def step(tensors: Sequence[jax.Array], token: jax.Array) -> Any:
        flat = _join(tensors)
        if not flat.size:
            return tensors, token
        result, token = _elementwise(flat, token, lambda x: _scaled(reduced(x, reduction, groups), scale))
        return _part(result, tensors), token

    results, token = _together(inputs, token, step)
    return [*results, token]


def all_gather(
    context: Context, inputs: list[jax.Array], token: jax.Array, dim: int, count: int, members: Ints, sizes: Ints
) -> list[jax.Array]:
    groups = index_groups(members, sizes)

    def step(tensors: Sequence[jax.Array], token: jax.Array) -> Any:
        flat = _join(tensors)
        shapes = [(*x.shape[:dim], count * x.shape[dim], *x.shape[dim + 1 :]) for x in tensors]
        if not flat.size:
            return [lax.full(shape, 0, flat.dtype) for shape in shapes], token
        rows, token = _in_order(flat, token, lambda x: lax.all_gather(x, REPLICA_AXIS, axis_index_groups=groups))
        made, start = [], 0
        for x, shape in zip(tensors, shapes, strict=True):
            piece = lax.reshape(lax.slice(rows, (0, start), (count, start + x.size)), (count, *x.shape))
            made.append(lax.reshape(jax.numpy.moveaxis(piece, 0, dim), shape))
            start += x.size
        return made, token

    results, token = _together(inputs, token, step)
    return [*results, token]


def reduce_scatter(
    context: Context,
    inputs: list[jax.Array],
    token: jax.Array,
    reduction: str,
    scale: Any,
    dim: int,
    count: int,
    members: Ints,
    sizes: Ints,
) -> list[jax.Array]:
    groups = index_groups(members, sizes)

    def step(tensors: Sequence[jax.Array], token: jax.Array) -> Any:
        shapes = [(*x.shape[:dim], x.shape[dim] // count, *x.shape[dim + 1 :]) for x in tensors]
        rows = [_rows(x, dim, count) for x in tensors]
        joined = lax.concatenate(rows, 1) if len(rows) > 1 else rows[0]
        if not joined.size:
            return [lax.full(shape, 0, joined.dtype) for shape in shapes], token
        flat, width = _flat(joined), joined.shape[1]
        mine, token = _in_order(flat, token, lambda x: _scattered(x, reduction, count, width, groups))
        made, start = [], 0
        for shape in shapes:
            size = int(np.prod(shape))
            made.append(lax.reshape(lax.slice(mine, (start,), (start + size,)), shape))
            start += size
        return [_scaled(x, scale) for x in made], token

    results, token = _together(inputs, token, step)
    return [*results, token]


def _rows(x: jax.Array, dim: int, count: int) -> jax.Array:
    """The parts that go to each member of a group, a row each."""
    split = lax.reshape(x, (*x.shape[:dim], count, x.shape[dim] // count, *x.shape[dim + 1 :]))
    return lax.reshape(jax.numpy.moveaxis(split, dim, 0), (count, x.size // count))


def _scattered(flat: jax.Array, reduction: str, count: int, width: int, groups: IndexGroups) -> jax.Array:
    if reduction == "sum" and flat.dtype != np.bool_:
        rows = lax.reshape(flat, (count, width))
        return lax.psum_scatter(rows, REPLICA_AXIS, axis_index_groups=groups)  # type: ignore[no-any-return]
    everything = reduced(flat, reduction, groups)
    return lax.dynamic_slice(everything, (place_in_group(groups) * width,), (width,))


def place_in_group(groups: IndexGroups) -> jax.Array:
    """This replica's position in its group."""
    ordinal = lax.axis_index(REPLICA_AXIS)
    if groups is None:
        return ordinal
    table = np.zeros(1 + max(map(max, groups)), np.int32)
    for group in groups:
        for place, member in enumerate(group):
            table[member] = place
    return jax.numpy.asarray(table)[ordinal]


def all_to_all(
    context: Context, value: jax.Array, token: jax.Array, split_dim: int, concat_dim: int, count: int, members: Ints, sizes: Ints
) -> list[jax.Array]:
    if not value.size:
        return [lax.full(context.shape, 0, value.dtype), token]

    def step(flat: jax.Array) -> jax.Array:
        shaped = lax.reshape(flat, value.shape)
        groups = index_groups(members, sizes)
        made: jax.Array = lax.all_to_all(shaped, REPLICA_AXIS, split_dim, concat_dim, axis_index_groups=groups, tiled=True)
        return made

    result, token = _in_order(_flat(value), token, step)
    return [result, token]


def collective_permute(context: Context, value: jax.Array, token: jax.Array, pairs: Ints) -> list[jax.Array]:
    if not value.size or not pairs:
        return [lax.full_like(value, 0), token]
    routes = list(zip(pairs[::2], pairs[1::2], strict=True))
    result, token = _in_order(_flat(value), token, lambda flat: lax.ppermute(flat, REPLICA_AXIS, routes))
    return [lax.reshape(result, value.shape), token]


def broadcast(context: Context, inputs: list[jax.Array], token: jax.Array, place: int, members: Ints, sizes: Ints) -> list[jax.Array]:
    groups = index_groups(members, sizes)
    is_root = place_in_group(groups) == place

    def step(tensors: Sequence[jax.Array], token: jax.Array) -> Any:
        flat = _join(tensors)
        if not flat.size:
            return tensors, token

        def bits_of_root(x: jax.Array) -> jax.Array:
            # As integers: a sum with zeros keeps every bit, of NaN and -0.0 too.
            bits = _to_bits(x)
            kept = lax.select(lax.broadcast(is_root, bits.shape), bits, lax.full_like(bits, 0))
            return _from_bits(lax.psum(kept, REPLICA_AXIS, axis_index_groups=groups), x.dtype)

        result, token = _elementwise(flat, token, bits_of_root)
        return _part(result, tensors), token

    results, token = _together(inputs, token, step)
    return [*results, token]


def _to_bits(x: jax.Array) -> jax.Array:
    if jax.numpy.issubdtype(x.dtype, np.complexfloating):
        return lax.concatenate([_to_bits(lax.real(x)), _to_bits(lax.imag(x))], 0)
    if x.dtype == np.bool_:
        return lax.convert_element_type(x, np.uint8)
    return lax.bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}"))


def _from_bits(bits: jax.Array, dtype: np.dtype) -> jax.Array:
    if jax.numpy.issubdtype(dtype, np.complexfloating):
        half = bits.shape[0] // 2
        part = np.dtype(f"float{4 * dtype.itemsize}")
        return lax.complex(_from_bits(bits[:half], part), _from_bits(bits[half:], part))
    if dtype == np.bool_:
        return bits != 0
    return lax.bitcast_convert_type(bits, dtype)

"""Attention by blocks of scores that stay in the cores' caches, with its gradient. Registers nothing.

XLA:CPU writes what lies between two products to memory: here never more than a block of a few heads, which the next product reads from
the cache. A loop over groups of heads holds the blocks of one group. Keys that a causal mask hides from a whole part of the queries are
left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xla_core.base.processor import multiplies_bfloat16
from xla_core.ops.axes import has_open_sizes
from xla_core.ops.cpu.in_memory import one_cpu
from xla_core.ops.cpu.staged import divisor
from xla_core.ops.promote import cast, compute_dtype, expand, full
from xla_core.ops.table import Context

Maybe = jax.Array | None

# Scores of a block: half a megabyte in float32, by which XLA:CPU divides the work on a block between two cores.
_BLOCK = 1 << 17
# Below, the scores of all heads fit into the caches, and one program without loops compiles in a fraction of the time.
_SMALL = 1 << 18
# Queries that attend to keys of their own: fewer are a product of a matrix and a vector.
_FEWEST_ROWS = 32
# A causal mask divides the queries into so many parts at most, of at least so many rows.
_PARTS, _PART_ROWS = 4, 64
# Elements that a vector register holds.
_LANES = 16


@dataclass(frozen=True, slots=True)
class _Problem:
    """One call. heads: of keys, in all batches; a group of them is computed in one turn of the loop. repeats: queries' heads for each of
    them. factor: the dtype of the products' operands.
    """

    heads: int
    heads_of_batch: int
    repeats: int
    rows: int
    keys: int
    is_causal: bool
    scale: float
    factor: np.dtype

    def group(self, rows: int, keys: int, biased: bool) -> int:
        """How many heads have so many scores together as a block should: of one batch where the bias may differ among batches."""
        most = max(1, _BLOCK // (self.repeats * rows * keys))
        return divisor(self.heads_of_batch if biased else self.heads, most)

    def parts(self, size: int) -> list[tuple[int, int]]:
        """Queries, or keys, cut where a causal mask makes it worth while."""
        count = min(_PARTS, max(1, size // _PART_ROWS)) if self.is_causal else 1
        cuts = [size * part // count // _LANES * _LANES for part in range(count)] + [size]
        return list(zip(cuts, cuts[1:], strict=False))


def in_blocks(ctx: Context, query: jax.Array, key: jax.Array, value: jax.Array, mask: Maybe) -> bool:
    """Whether attention is computed by blocks: on one CPU device, for shapes that are known and large."""
    arrays = [x for x in (query, key, value, mask) if x is not None]
    if not one_cpu(ctx) or any(has_open_sizes(x) for x in arrays) or query.ndim < 3 or key.ndim != query.ndim or value.ndim != query.ndim:
        return False
    heads = key.shape[-3]
    if query.shape[:-3] != key.shape[:-3] or key.shape[:-2] != value.shape[:-2] or not heads or query.shape[-3] % heads:
        return False
    return query.shape[-2] >= _FEWEST_ROWS and math.prod(query.shape[:-1]) * key.shape[-2] > _SMALL


def attend(query: jax.Array, key: jax.Array, value: jax.Array, mask: Maybe, is_causal: bool, scale: float) -> tuple[jax.Array, jax.Array]:
    """(output, logarithm of each row's sum) of `in_blocks` operands: the output in the query's dtype, the logarithms in the compute dtype.

    mask: True where a query sees a key, or what is added to the scores; broadcast to them.
    """
    problem = _problem_of(query, key, is_causal, scale)
    bias = _bias(mask, query, problem)
    parts = problem.parts(problem.rows)
    group = problem.group(parts[0][1], problem.keys, bias is not None)

    def one_group(operands: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        turn, q, k, v = operands
        shifts = None if bias is None else _of_group(bias, turn * group, group, problem)
        results = [_attend_part(problem, q, k, v, shifts, low, high, turn) for low, high in parts]
        output, logsumexp = (lax.concatenate(list(pieces), 2) for pieces in zip(*results, strict=True))
        return output, logsumexp

    output, logsumexp = _over_groups(one_group, problem.heads, group, _by_head(problem, query), *_flat(key, value))
    return lax.reshape(output, (*query.shape[:-1], value.shape[-1])), lax.reshape(logsumexp, query.shape[:-1])


def attend_backward(
    grad: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: Maybe,
    output: jax.Array,
    logsumexp: jax.Array,
    is_causal: bool,
    scale: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of query, key and value, in their dtypes: scores are computed again, transposed, from the logarithms that `attend` gave."""
    problem = _problem_of(query, key, is_causal, scale)
    bias = _bias(mask, query, problem)
    seen = min(problem.rows, problem.keys) if is_causal else problem.keys  # keys behind are hidden from all queries
    parts = problem.parts(seen)
    group = problem.group(problem.rows, parts[0][1], bias is not None)
    if bias is not None:
        logsumexp = finite(logsumexp)

    def one_group(operands: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        turn, d, q, k, v, o, sums = operands
        shifts = None if bias is None else _of_group(bias, turn * group, group, problem)
        level = lax.reduce_sum(lax.mul(_wide(d), _wide(o)), (3,))
        to_queries, to_keys, to_values = [], [], []
        for low, high in parts:  # a causal mask hides these keys from earlier queries
            rows = [lax.slice_in_dim(x, low, None, axis=2) for x in (d, q, sums, level)]
            to_query, to_key, to_value = _backward_part(problem, rows, k, v, shifts, low, high, turn)
            to_queries.append(to_query)
            to_keys.append(to_key)
            to_values.append(to_value)
        rest = problem.keys - seen
        if rest:
            for pieces, like in ((to_keys, k), (to_values, v)):
                pieces.append(lax.full((group, rest, like.shape[-1]), 0, pieces[0].dtype))
        results = (_summed_from([low for low, _ in parts], to_queries), lax.concatenate(to_keys, 1), lax.concatenate(to_values, 1))
        return tuple(cast(x, like.dtype) for x, like in zip(results, (q, k, v), strict=True))

    by_head = [_by_head(problem, x) for x in (grad, query, output)]
    sums = lax.reshape(logsumexp, (problem.heads, problem.repeats, problem.rows))
    gradients = _over_groups(one_group, problem.heads, group, by_head[0], by_head[1], *_flat(key, value), by_head[2], sums)
    return tuple(lax.reshape(x, like.shape) for x, like in zip(gradients, (query, key, value), strict=True))  # type: ignore[return-value]


def _summed_from(starts: list[int], parts: list[jax.Array]) -> jax.Array:
    """The sum of arrays (heads, repeats, rows, n), of which each begins at a row of the first and goes to the end."""
    ends = [*starts[1:], starts[0] + parts[0].shape[2]]
    pieces = []
    for number, (low, high) in enumerate(zip(starts, ends, strict=True)):
        shown = [lax.slice_in_dim(parts[i], low - starts[i], high - starts[i], axis=2) for i in range(number + 1)]
        pieces.append(reduce(lax.add, shown))
    return lax.concatenate(pieces, 2)


def _problem_of(query: jax.Array, key: jax.Array, is_causal: bool, scale: float) -> _Problem:
    heads = key.shape[-3]
    repeats = query.shape[-3] // heads
    native = query.dtype == jnp.bfloat16 and multiplies_bfloat16()
    factor = query.dtype if native else compute_dtype(query.dtype)
    return _Problem(math.prod(key.shape[:-2]), heads, repeats, query.shape[-2], key.shape[-2], is_causal, scale, factor)


def _by_head(problem: _Problem, x: jax.Array) -> jax.Array:
    """(…, queries' heads, rows, n) as (heads, repeats, rows, n)."""
    return lax.reshape(x, (problem.heads, problem.repeats, problem.rows, x.shape[-1]))


def _flat(*arrays: jax.Array) -> list[jax.Array]:
    """(…, heads, keys, n) as (heads, keys, n)."""
    return [lax.reshape(x, (math.prod(x.shape[:-2]), *x.shape[-2:])) for x in arrays]


def _over_groups(function: Callable[..., tuple[jax.Array, ...]], heads: int, group: int, *arrays: jax.Array) -> list[jax.Array]:
    """`function((turn, *arrays of a group of heads))` for each group; results with all heads in front."""
    if group == heads:
        return list(function((np.int32(0), *arrays)))

    def turn(operands: tuple[jax.Array, ...]) -> list[jax.Array]:
        index, *packed = operands
        results = function((index, *[_unpacked(x, like.dtype) for x, like in zip(packed, arrays, strict=True)]))
        dtypes[:] = [x.dtype for x in results]
        return [_packed(x) for x in results]

    dtypes: list[np.dtype] = []
    grouped = [lax.reshape(_packed(x), (heads // group, group, *x.shape[1:])) for x in arrays]
    results = lax.map(turn, (lax.iota(np.int32, heads // group), *grouped))
    return [_unpacked(lax.reshape(x, (heads, *x.shape[2:])), dtype) for x, dtype in zip(results, dtypes, strict=True)]


def _packed(x: jax.Array) -> jax.Array:
    """Halves as integers: XLA:CPU converts what a loop reads or writes parts of to float32 and back, all of it in each turn."""
    return lax.bitcast_convert_type(x, np.uint16) if x.dtype.itemsize == 2 else x


def _unpacked(x: jax.Array, dtype: np.dtype) -> jax.Array:
    return lax.bitcast_convert_type(x, dtype) if x.dtype == np.uint16 else x


def _bias(mask: Maybe, query: jax.Array, problem: _Problem) -> Maybe:
    """What is added to the scores, in the compute dtype: (batches, heads, repeats, rows, keys), each perhaps 1; None for nothing."""
    if mask is None:
        return None
    dtype = compute_dtype(query.dtype)
    if mask.dtype == np.bool_:
        # In memory, once: a select by booleans takes several times as long as an addition.
        shift: jax.Array = lax.optimization_barrier(lax.select(mask, full(0, mask.shape, dtype), full(-math.inf, mask.shape, dtype)))
    else:
        shift = cast(mask, dtype)
    shift = lax.expand_dims(shift, range(query.ndim - shift.ndim))
    *batches, heads, rows, keys = shift.shape
    if any(size != 1 for size in batches):
        shift = expand(shift, (*query.shape[:-3], heads, rows, keys))
    lead = (1, 1) if heads == 1 else (problem.heads_of_batch, problem.repeats)
    return lax.reshape(shift, (math.prod(shift.shape[:-3]), *lead, rows, keys))


def _of_group(bias: jax.Array, first: jax.Array, group: int, problem: _Problem) -> jax.Array:
    """The part of the bias for a group of heads from `first` on: (group or 1, repeats or 1, rows or 1, keys or 1)."""
    batches, heads = bias.shape[:2]
    zero = np.int32(0)
    batch = lax.div(first, np.int32(problem.heads_of_batch)) if batches > 1 else zero
    head = lax.rem(first, np.int32(problem.heads_of_batch)) if heads > 1 else zero
    sizes = (1, group if heads > 1 else 1, *bias.shape[2:])
    return lax.squeeze(lax.dynamic_slice(bias, (batch, head, zero, zero, zero), sizes), (0,))


def _wide(x: jax.Array) -> jax.Array:
    return cast(x, compute_dtype(x.dtype))


def _product(a: jax.Array, b: jax.Array, contracted: tuple[tuple[int, ...], tuple[int, ...]]) -> jax.Array:
    """Sums of products for each head, in the compute dtype."""
    return lax.dot_general(a, b, (contracted, ((0,), (0,))), preferred_element_type=compute_dtype(a.dtype))


def _cut(x: jax.Array, start: int | jax.Array, size: int, axis: int) -> jax.Array:
    """Elements from `start` on."""
    if isinstance(start, int):
        return lax.slice_in_dim(x, start, start + size, axis=axis)
    return lax.dynamic_slice_in_dim(x, start, size, axis)


def _cut_bias(bias: jax.Array, start: int | jax.Array, size: int, axis: int) -> jax.Array:
    return bias if bias.shape[axis] == 1 else _cut(bias, start, size, axis)


def _scaled(x: jax.Array, scale: float) -> jax.Array:
    return lax.mul(x, full(scale, x.shape, x.dtype))


def _divided(size: int, most: int) -> int:
    """How many equal blocks of at most `most` a size is computed in; 1 where it has no such divisor."""
    return next((count for count in range(-(-size // max(most, 1)), size // _LANES + 1) if size % count == 0), 1)


def _attend_part(
    problem: _Problem, q: jax.Array, k: jax.Array, v: jax.Array, bias: Maybe, low: int, high: int, turn: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Output and logarithms of the queries from `low` to `high` of a group of heads."""
    seen = min(high, problem.keys) if problem.is_causal else problem.keys
    k, v = (cast(_cut(x, 0, seen, 1), problem.factor) for x in (k, v))
    size = (high - low) // (count := _divided(high - low, _BLOCK // (q.shape[0] * problem.repeats * seen)))

    def block(start: int | jax.Array) -> tuple[jax.Array, jax.Array]:
        scores = _scaled(_product(cast(_cut(q, start, size, 2), problem.factor), k, ((3,), (2,))), problem.scale)
        if bias is not None:
            shift = _cut_bias(_cut_bias(bias, 0, seen, 3), start, size, 2)
            scores = lax.add(scores, expand(shift, scores.shape))
        if problem.is_causal:
            scores = _hide_later(scores, start, 0, turn, rows=2, keys=3)
        top = _folded(lax.max, lax.reduce_max, scores)
        level = top if bias is None else finite(top)
        weights = lax.exp(lax.sub(scores, _beside(level, scores, (0, 1, 2))))
        total = _folded(lax.add, lax.reduce_sum, weights)
        logsumexp = lax.add(level, lax.log(total))
        if bias is not None:
            total = lax.select(lax.eq(total, lax.full_like(total, 0)), lax.full_like(total, 1), total)
        output = _product(cast(weights, problem.factor), v, ((3,), (1,)))
        return cast(lax.div(output, _beside(total, output, (0, 1, 2))), q.dtype), logsumexp

    if count == 1:
        return block(low)
    output, logsumexp = lax.map(lambda index: block(index * size + low), lax.iota(np.int32, count))
    return _joined(output, 2), _joined(logsumexp, 2)


def _backward_part(
    problem: _Problem, queries: list[jax.Array], k: jax.Array, v: jax.Array, bias: Maybe, low: int, high: int, turn: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of queries, and of the keys and values from `low` to `high`, by what these keys contribute.

    queries: of those from `low` on the gradients of their outputs, themselves, their logarithms, and sums of gradients times outputs.
    """
    group, repeats, rows, _ = queries[1].shape
    # Repeats and rows are one dimension of the products.
    d, q, sums, level = (lax.reshape(x, (group, repeats * rows, *x.shape[3:])) for x in queries)
    d, q = cast(d, problem.factor), cast(q, problem.factor)
    size = (high - low) // (turns := _divided(high - low, _BLOCK // (group * repeats * rows)))
    if bias is not None:
        bias = lax.transpose(_cut_bias(bias, low if problem.is_causal else 0, rows, 2), (0, 3, 1, 2))

    def block(start: int | jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        keys, values = (cast(_cut(x, start, size, 1), problem.factor) for x in (k, v))
        scores = _scaled(_product(keys, q, ((2,), (2,))), problem.scale)
        if bias is not None or problem.is_causal:
            scores = lax.reshape(scores, (group, size, repeats, rows))
            if bias is not None:
                scores = lax.add(scores, expand(_cut_bias(bias, start, size, 1), scores.shape))
            if problem.is_causal:
                scores = _hide_later(scores, low, start, turn, rows=3, keys=1)
            scores = lax.reshape(scores, (group, size, repeats * rows))
        weights = lax.exp(lax.sub(scores, _beside(sums, scores, (0, 2))))
        to_values = _product(cast(weights, problem.factor), d, ((2,), (1,)))
        to_weights = _product(values, d, ((2,), (2,)))
        slopes = lax.mul(weights, lax.sub(to_weights, _beside(level, to_weights, (0, 2))))
        to_scores = cast(_scaled(slopes, problem.scale), problem.factor)
        return _product(to_scores, keys, ((1,), (1,))), _product(to_scores, q, ((2,), (1,))), to_values

    if turns == 1:
        to_query, to_keys, to_values = block(low)
    else:

        def keys_of(so_far: jax.Array, index: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            to_query, to_keys, to_values = block(index * size + low)
            return lax.add(so_far, to_query), (to_keys, to_values)

        to_query, (to_keys, to_values) = lax.scan(keys_of, lax.full(q.shape, 0, compute_dtype(q.dtype)), lax.iota(np.int32, turns))
        to_keys, to_values = _joined(to_keys, 1), _joined(to_values, 1)
    return lax.reshape(to_query, (group, repeats, rows, q.shape[-1])), to_keys, to_values


def _joined(blocks: jax.Array, axis: int) -> jax.Array:
    """(blocks, …) with the blocks one after the other along an axis of each."""
    moved = lax.transpose(blocks, (*range(1, axis + 1), 0, *range(axis + 1, blocks.ndim)))
    return lax.reshape(moved, (*moved.shape[:axis], moved.shape[axis] * moved.shape[axis + 1], *moved.shape[axis + 2 :]))


def _hide_later(scores: jax.Array, row: int | jax.Array, key: int | jax.Array, turn: jax.Array, *, rows: int, keys: int) -> jax.Array:
    """-inf for the keys after each query, by where in the sequence the first of each stands. rows, keys: their dimensions."""
    # 0, which the compiler does not know: what does not depend on the turn it computes before the loop, and keeps in memory.
    nothing = lax.min(turn, np.int32(0))
    shift = lax.convert_element_type(key, np.int32) - lax.convert_element_type(row, np.int32) + nothing
    queries = lax.broadcasted_iota(np.dtype(np.int32), scores.shape, rows)
    later = lax.lt(queries, lax.add(lax.broadcasted_iota(np.dtype(np.int32), scores.shape, keys), lax.full(scores.shape, shift)))
    return lax.select(later, full(-math.inf, scores.shape, scores.dtype), scores)


def finite(x: jax.Array) -> jax.Array:
    """`x` with 0 for -inf: what to subtract from a row that is masked throughout."""
    return lax.select(lax.eq(x, full(-math.inf, x.shape, x.dtype)), lax.full_like(x, 0), x)


def _beside(row: jax.Array, like: jax.Array, dims: tuple[int, ...]) -> jax.Array:
    """One number per query, over all keys."""
    return lax.broadcast_in_dim(row, like.shape, dims)


def _folded(combine: Callable[[jax.Array, jax.Array], jax.Array], rest: Callable[..., jax.Array], x: jax.Array) -> jax.Array:
    """A reduction of the last dimension by halves, so that XLA:CPU combines whole registers: its own takes one element after the other."""
    last, pieces = x.ndim - 1, []
    while x.shape[last] >= 2 * _LANES:
        half = x.shape[last] // (2 * _LANES) * _LANES
        if 2 * half < x.shape[last]:
            pieces.append(lax.slice_in_dim(x, 2 * half, None, axis=last))
        x = combine(lax.slice_in_dim(x, 0, half, axis=last), lax.slice_in_dim(x, half, 2 * half, axis=last))
    return reduce(combine, [rest(piece, (last,)) for piece in (x, *pieces)])

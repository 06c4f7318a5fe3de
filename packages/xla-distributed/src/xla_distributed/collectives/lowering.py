"""Lower collectives to `jax.lax`, inside a program that runs over the mesh of all replicas: order, flat arrays, groups.

Collectives keep their order by data: each takes a token from the one before and makes a token for the next. Replicas may run
different operations between equal collectives, and XLA orders what does not depend on each other as it likes, so that without
it two replicas could wait for each other in different collectives. The token is zero, but XLA cannot know: all operands depend
on it, because XLA would drop a collective over a constant, which it takes to be the same on all replicas.

On CPU, tensors of one dtype travel together in one flat array: a collective costs the same for one as for a hundred small ones. A large
array travels in parts (`_by_parts`). The compilers for accelerators put collectives together by themselves, and there tensors travel in
their own shapes (`in_own_shapes`): a flat array is another layout in the memory of a TPU, and its reduce-scatter becomes an all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.abi.operators import REPLICA_AXIS

Ints = Sequence[int]
IndexGroups = list[list[int]] | None
# On CPU, up to how many bytes a collective takes at once, and of how many the parts of a larger one are.
# Below the 32 MiB from which the allocator gives memory back (`_by_parts`).
_WHOLE_BYTES, _PART_BYTES = 24 << 20, 8 << 20


def index_groups(members: Ints, sizes: Ints) -> IndexGroups:
    """Groups as jax takes them; None for one of all."""
    groups, start = [], 0
    for size in sizes:
        groups.append(list(members[start : start + size]))
        start += size
    return groups or None


def _masked(x: jax.Array, token: jax.Array) -> jax.Array:
    """The same values, available only after the token."""
    if jax.numpy.issubdtype(x.dtype, np.complexfloating):
        return lax.complex(_masked(lax.real(x), token), _masked(lax.imag(x), token))
    bits = to_bits(x)
    mask = lax.broadcast(lax.convert_element_type(token, bits.dtype), bits.shape)
    # As bits, which a zero leaves as they are, those of NaN and -0.0 too. Over the whole: a tied element in a constant leaves a constant.
    return from_bits(lax.bitwise_xor(bits, mask), x.dtype)


def _tied(x: jax.Array, token: jax.Array) -> jax.Array:
    """The same values, opaque to XLA and available only after the token."""
    tied: jax.Array = lax.optimization_barrier(_masked(x, token))
    return tied


def _token_after(results: Sequence[jax.Array], token: jax.Array) -> jax.Array:
    # Zero again, but only the results can say so. One element of each is enough: it is there when the collective is over.
    firsts = [lax.reshape(lax.slice(x, (0,) * x.ndim, (1,) * x.ndim), (1,)) != 0 for x in results]
    there = lax.reduce_or(lax.concatenate(firsts, 0), (0,)) if len(firsts) > 1 else lax.squeeze(firsts[0], (0,))
    return lax.bitwise_and(token, lax.convert_element_type(there, token.dtype))


def flatten(x: jax.Array) -> jax.Array:
    """The array in one dimension."""
    return lax.reshape(x, (x.size,))


# Computes a collective's result from an array that is tied to its token.
Step = Callable[[jax.Array], jax.Array]


def in_order(flat: jax.Array, token: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
    """One collective over a flat array that is not empty; its result, and the next token."""
    result = step(_tied(flat, token))
    return result, _token_after([flatten(result)], token)


def in_own_shapes(arrays: Sequence[jax.Array], token: jax.Array, step: Step) -> tuple[list[jax.Array], jax.Array]:
    """A collective over each array, after the token; the results, and the token after all of them. Empty arrays send nothing.

    Among themselves they have no order: XLA may put them together, or send one while another is computed.
    """
    results = [step(_tied(x, token)) if x.size else _empty(x, step) for x in arrays]
    sent = [result for result, x in zip(results, arrays, strict=True) if x.size]
    return results, _token_after([_narrowed(result) for result in sent], token) if sent else token


def _narrowed(x: jax.Array) -> jax.Array:
    """Floats in bfloat16: if nobody else reads more of a gathered array, as products on TPUs do not, XLA gathers half of its bits."""
    return lax.convert_element_type(x, jax.numpy.bfloat16) if x.dtype == np.float32 else x


def _empty(x: jax.Array, step: Step) -> jax.Array:
    like = jax.eval_shape(step, x)
    return lax.full(like.shape, 0, like.dtype)


def elementwise(flat: jax.Array, token: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
    """As `in_order`, for a step that computes each element of its result from the same element of its operand on all replicas."""
    large = flat.size * flat.dtype.itemsize > _WHOLE_BYTES
    return _by_parts(flat, token, step) if large else in_order(flat, token, step)


def _by_parts(flat: jax.Array, token: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
    """As `in_order`, one part after the other and in place.

    On CPU a collective makes a copy of its operand. The allocator gives memory of more than 32 MiB back to the system after each run,
    and touching it anew costs as much as sending it; the memory for a part stays with the process.
    """
    size = _PART_BYTES // flat.dtype.itemsize

    def turn(index: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        flat, token = state
        start = (index * size,)
        result, token = in_order(lax.dynamic_slice(flat, start, (size,)), token, step)
        return lax.dynamic_update_slice(flat, result, start), token

    count, rest = divmod(flat.size, size)
    flat, token = lax.fori_loop(0, count, turn, (flat, token))
    if rest:
        result, token = in_order(lax.slice(flat, (count * size,), (flat.size,)), token, step)
        flat = lax.dynamic_update_slice(flat, result, (count * size,))
    return flat, token


def together(inputs: Sequence[jax.Array], token: jax.Array, step: Callable[[Sequence[jax.Array], jax.Array], Any]) -> Any:
    """Apply `step(tensors, token) -> (results, token)` to the tensors of each dtype; results in the order of the inputs."""
    results: list[Any] = [None] * len(inputs)
    indices_by_dtype: dict[np.dtype, list[int]] = {}
    for index, x in enumerate(inputs):
        indices_by_dtype.setdefault(x.dtype, []).append(index)
    # In the order in which dtypes first appear, which is the same on all replicas.
    for indices in indices_by_dtype.values():
        step_results, token = step([inputs[index] for index in indices], token)
        for index, result in zip(indices, step_results, strict=True):
            results[index] = result
    return results, token


def join(inputs: Sequence[jax.Array]) -> jax.Array:
    """One flat array of all elements, for arrays of one dtype."""
    return lax.concatenate([flatten(x) for x in inputs], 0) if len(inputs) > 1 else flatten(inputs[0])


def split_as(flat: jax.Array, like: Sequence[jax.Array]) -> list[jax.Array]:
    """A flat array cut into pieces shaped as `like`."""
    parts, start = [], 0
    for x in like:
        parts.append(lax.reshape(lax.slice(flat, (start,), (start + x.size,)), x.shape))
        start += x.size
    return parts


def place_in_group(groups: IndexGroups) -> jax.Array:
    """This replica's position in its group."""
    ordinal = lax.axis_index(REPLICA_AXIS)
    if groups is None:
        return ordinal
    table = np.zeros(1 + max(map(max, groups)), np.int32)
    for group in groups:
        for position, member in enumerate(group):
            table[member] = position
    return jax.numpy.asarray(table)[ordinal]


def to_bits(x: jax.Array) -> jax.Array:
    """The bits of the elements, which are not complex, as unsigned integers."""
    if x.dtype == np.bool_:
        return lax.convert_element_type(x, np.uint8)
    return lax.bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}"))


def from_bits(bits: jax.Array, dtype: np.dtype) -> jax.Array:
    """The array whose bits `to_bits` gave."""
    if dtype == np.bool_:
        return bits != 0
    return lax.bitcast_convert_type(bits, dtype)

"""Random bits, and the uniform and normal numbers made of them: Threefry-2x32 with 20 rounds, counted by position.

Element i of stream s under a key is the cipher of the counter (i, s): elementwise arithmetic that XLA fuses into its users, with
values that depend neither on the schedule nor on how a tensor is sharded. Small operations of a program are rows of one array of
such words. Registers nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from types import MappingProxyType

import jax
import numpy as np
import torch
from jax import lax

from xla_core.base.dtypes import torch_dtype
from xla_core.ops.promote import cast, compute_dtype, is_float

_WORD = np.dtype(np.uint32)
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_STREAM_SHIFT = 24  # the counter's second word: stream above, bits 32 and up of the position below
_SIZES = (0, 1 << 12, 1 << 16)
"""Operations whose results have more elements than one of these and at most as many as the next one share a cipher."""
_DIGITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}

Words = tuple[jax.Array, jax.Array]


def _word(value: int) -> jax.Array:
    return jax.numpy.asarray(np.uint32(value))


@jax.jit  # traced and lowered once for all random operations of a shape: tracing its 130 operations takes longer than all else
def threefry2x32(key: Words, counter: Words) -> Words:
    """The cipher of one 64-bit counter (or an array of them) under a 64-bit key."""
    left, right = counter
    schedule = (*key, key[0] ^ key[1] ^ _word(_PARITY))
    left, right = left + schedule[0], right + schedule[1]
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            left = left + right
            right = (right << _word(rotation)) | (right >> _word(32 - rotation))
            right = right ^ left
        left = left + schedule[(block + 1) % 3]
        right = right + schedule[(block + 2) % 3] + _word(block + 1)
    return left, right


def _positions(shape: Sequence[int]) -> Words:
    """The row-major position of each element as (low, high) words; built from an iota per dimension, so it can be sharded."""
    shape = tuple(shape)
    small = math.prod(shape) <= 1 << 32
    dtype = _WORD if small else np.dtype(np.uint64)
    position, stride = lax.full(shape, 0, dtype), 1
    for axis in reversed(range(len(shape))):
        if shape[axis] > 1:
            position = position + lax.broadcasted_iota(dtype, shape, axis) * jax.numpy.asarray(np.asarray(stride, dtype))
        stride *= shape[axis]
    if small:
        return position, lax.full(shape, 0, _WORD)
    high = lax.shift_right_logical(position, lax.full(shape, 32, dtype))
    return lax.convert_element_type(position, _WORD), lax.convert_element_type(high, _WORD)


def _drawn(seeds: Sequence[jax.Array], width: int) -> Words:
    """The words of the first `width` elements of stream 0, a row for each seed."""
    keys = lax.concatenate([lax.reshape(seed, (1, 2)) for seed in seeds], 0)
    left, right = (lax.broadcast_in_dim(lax.index_in_dim(keys, word, axis=1), (len(seeds), width), (0, 1)) for word in (0, 1))
    shape = left.shape
    words = threefry2x32((left, right), (lax.broadcasted_iota(_WORD, shape, 1), lax.full(shape, 0, _WORD)))
    kept: Words = lax.optimization_barrier(words)  # else each user computes the cipher again
    return kept


# The words that were drawn for several operations at once, and the row in them, by the `id` of an operation's seed.
_drawn_before: ContextVar[Mapping[int, tuple[Words, int]]] = ContextVar("_drawn_before", default=MappingProxyType({}))


@contextmanager
def drawn_at_once(sizes: Sequence[tuple[jax.Array, int]]) -> Iterator[None]:
    """Within, `bits` takes what several operations need of one cipher for all of them, which compiles in the time of one.

    sizes: the seed of each operation and how many elements its result has. Those of many elements have a cipher of their own, which is
    fused into what uses it.
    """
    rows: dict[int, tuple[Words, int]] = {}
    for fewest, most in pairwise(_SIZES):
        group = [(seed, size) for seed, size in sizes if fewest < size <= most]
        if len(group) > 1:
            words = _drawn([seed for seed, _ in group], max(size for _, size in group))
            rows |= {id(seed): (words, row) for row, (seed, _) in enumerate(group)}
    token = _drawn_before.set(rows)
    try:
        yield
    finally:
        _drawn_before.reset(token)


def bits(seed: jax.Array, shape: Sequence[int], stream: int = 0) -> Words:
    """Two independent random words per element; streams below 256 are independent of each other."""
    size = math.prod(shape)
    before = _drawn_before.get().get(id(seed))
    if before is not None and stream == 0 and size <= before[0][0].shape[1]:
        words, row = before
        left, right = (lax.reshape(lax.slice(word, (row, 0), (row + 1, size)), tuple(shape)) for word in words)
        return left, right
    low, high = _positions(shape)
    key = (lax.index_in_dim(seed, 0, keepdims=False), lax.index_in_dim(seed, 1, keepdims=False))
    fresh: Words = threefry2x32(key, (low, high + _word(stream << _STREAM_SHIFT)))
    return fresh


def bits64(seed: jax.Array, shape: Sequence[int], stream: int = 0) -> jax.Array:
    """64 random bits per element."""
    high, low = (lax.convert_element_type(word, np.uint64) for word in bits(seed, shape, stream))
    return (high << jax.numpy.asarray(np.uint64(32))) | low


def digits(dtype: np.dtype) -> int:
    """Significant binary digits of a floating-point `dtype`: every whole number up to 2 ** digits has a value of its own."""
    return _DIGITS[torch_dtype(dtype)]


def _whole(seed: jax.Array, shape: Sequence[int], count: int, stream: int) -> jax.Array:
    """Uniform whole numbers of `count` binary digits, unsigned."""
    if count <= 32:
        word, _ = bits(seed, shape, stream)
        return lax.shift_right_logical(word, lax.full(word.shape, 32 - count, _WORD))
    wide = bits64(seed, shape, stream)
    return lax.shift_right_logical(wide, lax.full(wide.shape, 64 - count, wide.dtype))


def unit(seed: jax.Array, shape: Sequence[int], dtype: np.dtype, stream: int = 0) -> jax.Array:
    """Uniform in [0, 1), with as many digits as `dtype` can hold below 1, in the compute dtype of `dtype`."""
    count = digits(dtype)
    whole = lax.convert_element_type(_whole(seed, shape, count, stream), compute_dtype(dtype))
    return whole * 2.0**-count


def open_unit(seed: jax.Array, shape: Sequence[int], dtype: np.dtype, stream: int = 0) -> jax.Array:
    """Uniform in (0, 1) in the compute dtype of `dtype`; small values keep full precision, so that -log has its long tail."""
    wide = compute_dtype(dtype)
    count = 64 if wide == np.float64 else 32
    whole = lax.convert_element_type(_whole(seed, shape, count, stream), wide)
    below_one = lax.full(tuple(shape), 1 - 2.0 ** -digits(wide), wide)
    return lax.min((whole + 0.5) * 2.0**-count, below_one)


def standard_normal(seed: jax.Array, shape: Sequence[int], dtype: np.dtype, stream: int = 0) -> jax.Array:
    """Normal numbers of mean 0 and variance 1; complex ones have that variance over both parts together."""
    if not is_float(dtype):
        part = np.dtype(np.float32 if dtype == np.complex64 else np.float64)
        real, imag = (standard_normal(seed, shape, part, stream + i) for i in (0, 1))
        return lax.complex(real * math.sqrt(0.5), imag * math.sqrt(0.5))
    wide = compute_dtype(dtype)
    count = digits(wide) - 1  # so that the middle of each cell has an exact value: never -1, 0 or 1
    whole = lax.convert_element_type(_whole(seed, shape, count, stream), wide)
    symmetric = (whole + 0.5) * 2.0 ** (1 - count) - 1.0
    return cast(lax.erf_inv(symmetric) * math.sqrt(2), dtype)

"""The numbers of a launch as one array: a step uploads one buffer, whatever kinds of numbers change in it.

Numbers of one kind stand in it as they are, those of several kinds as 32-bit words.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
from jax import lax

from xla_core.engine.compile.emit import arrays_of, rows_of_arrays
from xla_core.engine.graph.entries import ScalarKind
from xla_core.engine.graph.graph import Graph

_WORD, _SINGLE = np.dtype(np.uint32), np.dtype(np.float32)
_DOUBLE = frozenset({np.dtype(np.float64), np.dtype(np.complex128)})


class FloatForm(Enum):
    """How floats stand in the words: as float64, as float32, or as a pair of these whose sum they are."""

    DOUBLE = "double"
    SINGLE = "single"
    PAIR = "pair"


def float_form(graph: Graph, platform: str) -> FloatForm:
    """The form of floats in a program for a platform.

    A TPU's float64 is a sum of two float32, which XLA cannot make of other bits; a program without any needs the first alone.
    """
    if platform != "tpu":
        return FloatForm.DOUBLE
    return FloatForm.PAIR if any(aval is not None and aval.physical in _DOUBLE for aval in graph.parts.avals) else FloatForm.SINGLE


def words_of(floats: list[float], ints: list[int], seeds: list[int], form: FloatForm) -> list[np.ndarray[Any, Any]]:
    """The array that follows the buffers among a program's arguments; none for a program without numbers."""
    arrays = arrays_of(floats, ints, seeds)
    if floats and form is not FloatForm.DOUBLE:
        with np.errstate(over="ignore", invalid="ignore"):
            first = arrays[0].astype(np.float32)
            rest = np.where(np.isfinite(first), arrays[0] - first, 0).astype(np.float32)
        arrays[:1] = [first] if form is FloatForm.SINGLE else [first, rest]
    return arrays if len(arrays) < 2 else [np.concatenate([array.reshape(-1).view(_WORD) for array in arrays])]


def rows_of_words(form: FloatForm, packed: Sequence[Any], numbers: Mapping[ScalarKind, int]) -> dict[ScalarKind, list[Any]]:
    """The numbers in the array, as `program` takes them: each is cut out first, so that it becomes part of what uses it."""
    if sum(map(bool, numbers.values())) < 2 and not (form is FloatForm.PAIR and numbers[ScalarKind.FLOAT]):
        return rows_of_arrays(packed, numbers)
    [words] = packed
    places = itertools.count()

    def word(dtype: np.dtype) -> Any:
        return lax.bitcast_convert_type(words[next(places)], dtype)

    def floats(count: int) -> list[Any]:
        if form is FloatForm.DOUBLE:
            return wide(count, np.dtype(np.float64))
        firsts = [word(_SINGLE) for _ in range(count)]
        if form is FloatForm.SINGLE:
            return firsts
        return [lax.add(*[lax.convert_element_type(part, np.float64) for part in (first, word(_SINGLE))]) for first in firsts]

    def wide(count: int, dtype: np.dtype) -> list[Any]:
        return [lax.bitcast_convert_type(pair, dtype) for pair in seeds(count)]

    def seeds(count: int) -> list[Any]:
        begins = [(next(places), next(places))[0] for _ in range(count)]
        return [words[begin : begin + 2] for begin in begins]

    readers: dict[ScalarKind, Callable[[int], list[Any]]] = {
        ScalarKind.FLOAT: floats,
        ScalarKind.INT: partial(wide, dtype=np.dtype(np.int64)),
        ScalarKind.SEED: seeds,
    }
    return {kind: readers[kind](count) for kind, count in numbers.items()}

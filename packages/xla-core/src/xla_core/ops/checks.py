"""Checks of what only data shows to be wrong, such as an index out of range: done by the program, raised when its results are read.

A lowering calls `context.check` with what it tests; the program returns what all its checks found beside its results
(engine/compile/emit.py), and the runtime looks at it when a value is read or at a later sync (engine/runtime/faults.py).
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax import lax

from xla_core.base.errors import RegistrationError
from xla_core.ops.platforms import in_range, position_dtype

_INT64 = np.dtype(np.int64)
NOTHING = {dtype: int(np.iinfo(dtype).min) for dtype in (np.dtype(np.int32), _INT64)}
"""The example of a check that found nothing, by the dtype in which its program counts."""
_FIRST_OWN = 1 << 32  # numbers from here on stand for texts of rows


class Fault(enum.IntEnum):
    """The kinds of wrong data. The numbers are part of programs on disk."""

    INDEX = 1  # value: an index; its dimension, the size
    INDEX_SELECT = 2  # value: an index; the size
    GATHER = 3  # value: an index; its dimension, the size
    TAKE = 4  # value: an index; number of elements
    TARGET = 5  # value: a class
    MARGIN_TARGET = 6
    MASK_VALUES = 7  # value: how many elements are set; how many values there are
    MASK_SOURCE = 8  # value: how many elements are set; how many elements the source has
    PROBABILITY = 9
    WEIGHTS = 10
    NO_WEIGHT = 11
    DEVIATION = 12
    RATE = 13
    LIKELIHOOD = 14
    DIVISION = 15
    REPEATS = 16  # value: sum of the repeats; the `output_size` that was given
    BAG = 17  # value: an index; the size
    UNPOOL = 18  # value: an index; the size
    CLASS = 19  # value: a class; number of classes
    MASK_POSITIONS = 20  # value: how many elements are set; how many positions stand beside them
    FIRST_OFFSET = 21  # value: the first of the offsets
    LAST_OFFSET = 22  # value: the last of the offsets; number of elements
    NEGATIVE_LENGTH = 23
    LENGTHS = 24
    NOT_FINITE = 25


_Error = Callable[[int, int, int], Exception]

_ERRORS: dict[Fault, _Error] = {
    Fault.INDEX: lambda index, dim, size: IndexError(f"index {index} is out of bounds for dimension {dim} with size {size}"),
    Fault.INDEX_SELECT: lambda index, size, _: IndexError(f"index out of range in self: {index} where there are {size}"),
    Fault.GATHER: lambda index, dim, size: RuntimeError(f"index {index} is out of bounds for dimension {dim} with size {size}"),
    Fault.TAKE: lambda index, size, _: IndexError(f"out of range: tried to access index {index} on a tensor of {size} elements"),
    Fault.TARGET: lambda target, classes, _: IndexError(f"Target {target} is out of bounds: there are {classes} classes"),
    Fault.MARGIN_TARGET: lambda target, classes, _: RuntimeError(f"argument #2 'target' is out of range: {target} of {classes} classes"),
    Fault.MASK_VALUES: lambda number, values, _: RuntimeError(
        f"shape mismatch: value tensor with {values} elements along the mask cannot be broadcast to indexing result with {number}"
    ),
    Fault.MASK_POSITIONS: lambda number, others, _: IndexError(
        f"shape mismatch: indexing tensors could not be broadcast together with shapes [{number}], [{others}]"
    ),
    Fault.MASK_SOURCE: lambda number, elements, _: RuntimeError(
        f"Number of elements of source < number of ones in mask: {elements} < {number}"
    ),
    Fault.PROBABILITY: lambda *_: RuntimeError("Expected p_in >= 0 && p_in <= 1 to be true, but got false"),
    Fault.WEIGHTS: lambda *_: RuntimeError("probability tensor contains either `inf`, `nan` or element < 0"),
    Fault.NO_WEIGHT: lambda *_: RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)"),
    Fault.DEVIATION: lambda *_: RuntimeError("normal expects all elements of std >= 0.0"),
    Fault.RATE: lambda *_: RuntimeError("invalid Poisson rate, expected rate to be non-negative"),
    Fault.LIKELIHOOD: lambda *_: RuntimeError("all elements of input and target should be between 0 and 1"),
    Fault.DIVISION: lambda *_: RuntimeError("ZeroDivisionError: an integer was divided by zero"),
    Fault.REPEATS: lambda total, size, _: RuntimeError(f"allocated size does not match required size: {size}, but repeats sum to {total}"),
    Fault.CLASS: lambda value, classes, _: RuntimeError(
        "Class values must be non-negative" if value < 0 else f"Class values must be smaller than num_classes: {value} of {classes}"
    ),
    Fault.BAG: lambda index, size, _: RuntimeError(f"input takes value {index} which is not in the valid range [0, {size})"),
    Fault.FIRST_OFFSET: lambda offset, *_: RuntimeError(
        f"offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. However, got {offset}"
    ),
    Fault.LAST_OFFSET: lambda offset, size, _: RuntimeError(
        f"offsets[-1] can not be greater than input's length {size} but got offsets[-1] of {offset}"
    ),
    Fault.NEGATIVE_LENGTH: lambda *_: RuntimeError("lengths contains negative value!"),
    Fault.LENGTHS: lambda *_: RuntimeError(
        "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when !unsafe."
    ),
    Fault.NOT_FINITE: lambda *_: RuntimeError("torch.linalg.eig: input tensor should not contain infs or NaNs."),
    Fault.UNPOOL: lambda index, size, _: RuntimeError(f"Found an invalid max index: {index}, the output volumes have {size} elements"),
}


_texts: dict[int, str] = {}  # of rows' own faults, by the number that stands for the text in a check


def name_fault(text: str) -> int:
    """The number of a row's own fault, the same in every process.

    Raises RegistrationError for a text with other fields than `{value}`, `{0}` and `{1}`, and where two texts have one number.
    """
    try:
        text.format(0, 0, value=0)
    except (LookupError, ValueError, AttributeError) as error:
        raise RegistrationError(f"the fault {text!r} has other fields than {{value}}, {{0}} and {{1}}: {error}") from error
    code = _FIRST_OWN + zlib.crc32(text.encode())
    if _texts.setdefault(code, text) != text:
        raise RegistrationError(f"the faults {text!r} and {_texts[code]!r} have one number: put one of them into other words")
    return code


def _code_of(fault: Fault | str) -> int:
    if isinstance(fault, Fault):
        return int(fault)
    code = _FIRST_OWN + zlib.crc32(fault.encode())
    if _texts.get(code) != fault:
        text = f"no row has the fault {fault!r}: name it in OpSpec.faults"
        raise RegistrationError(f"{text}, so that a process which loads the program from disk can raise it")
    return code


def error_of(code: int, value: int, numbers: tuple[int, int], where: str) -> Exception:
    """The exception for the fault with this number, as torch raises it, with `where` behind its text."""
    if code >= _FIRST_OWN:
        text = _texts.get(code, "its data is wrong, in a way that its lowering does not name any more")
        return RuntimeError(f"{text.format(*numbers, value=value)}{where}")
    error = _ERRORS[Fault(code)](value, *numbers)
    return type(error)(f"{error}{where}")


@dataclass(frozen=True, slots=True)
class Check:
    """A test that a lowering makes: `value`, a scalar of the dtype of positions, is an example of what is wrong, or `NOTHING`."""

    fault: int
    value: jax.Array
    numbers: tuple[int, int]


def made(fault: Fault | str, wrong: jax.Array, value: jax.Array | None, numbers: tuple[int, ...], platform: str) -> Check:
    """The check that nothing of `wrong` (booleans) is true. value: integers of the same shape to show, the largest of them."""
    dtype = position_dtype(platform)
    shown = lax.full_like(wrong, 1, dtype) if value is None else in_range(value, dtype)
    example = lax.reduce_max(lax.select(wrong, shown, lax.full_like(shown, NOTHING[dtype])), tuple(range(wrong.ndim)))
    first, second = (*numbers, 0, 0)[:2]
    return Check(_code_of(fault), example, (first, second))


def nothing_found(platform: str) -> jax.Array:
    """The value of a check that found nothing."""
    dtype = position_dtype(platform)
    return lax.full((), NOTHING[dtype], dtype)


def examples(checks: Sequence[Check]) -> jax.Array:
    """What each of `checks` found, or `NOTHING`: a vector."""
    return lax.concatenate([lax.reshape(check.value, (1,)) for check in checks], 0)


def not_a_share(x: jax.Array) -> jax.Array:
    """The mask of floats that are not in [0, 1]; NaN is not."""
    return lax.bitwise_not(lax.bitwise_and(lax.ge(x, lax.full_like(x, 0)), lax.le(x, lax.full_like(x, 1))))


def outside(index: jax.Array, size: int, low: int = 0) -> jax.Array:
    """The mask of integers that are not in [low, size)."""
    if index.dtype != np.int32 or size > np.iinfo(np.int32).max:
        index = lax.convert_element_type(index, _INT64)
    return lax.bitwise_or(lax.lt(index, lax.full_like(index, low)), lax.ge(index, lax.full_like(index, size)))

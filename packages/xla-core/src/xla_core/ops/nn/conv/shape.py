"""The geometry of a convolution: how kernel offsets ("taps"), inputs and outputs meet. Plain integers, no arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from xla_core.ops.table import Context

Ints = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Strides, padding and dilation per spatial dimension, and the number of channel groups, of one forward convolution.

    program: says what the program that it is in is compiled for.
    """

    stride: Ints
    padding: Ints
    dilation: Ints
    groups: int = 1
    program: Context = Context(())


@dataclass(frozen=True, slots=True)
class Tap:
    """One kernel offset and the part of the output (start, stop per dimension) for which it reads inside the input."""

    offset: Ints
    start: Ints
    stop: Ints
    first: Ints  # the input position that output position `start` reads

    @property
    def extent(self) -> Ints:
        """Number of output positions per dimension."""
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))


def spatial_arguments(rank: int, *values: Sequence[int]) -> tuple[Ints, ...]:
    """Each argument with one integer per spatial dimension; torch lets a single one stand for all."""
    return tuple(tuple(value) if len(value) == rank else (value[0],) * rank for value in values)


def _axis_taps(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> list[tuple[int, int, int, int]]:
    """(offset, start, stop, first) of each kernel offset that reads the input at all, along one dimension."""
    found = []
    for offset in range(kernel):
        shift = offset * dilation - padding
        start = max(0, -(shift // stride))
        stop = min(out, (size - 1 - shift) // stride + 1)
        if start < stop:
            found.append((offset, start, stop, start * stride + shift))
    return found


def taps(size: Ints, out: Ints, kernel: Ints, window: Window) -> Iterator[Tap]:
    """The kernel offsets that read anything but padding, in row-major order."""
    axes = [_axis_taps(*axis) for axis in zip(size, out, kernel, window.stride, window.padding, window.dilation, strict=True)]
    for combination in product(*axes):
        offset, start, stop, first = zip(*combination, strict=True)
        yield Tap(offset, start, stop, first)


def useful_share(size: Ints, out: Ints, kernel: Ints, window: Window) -> float:
    """Which part of all (kernel offset, output) pairs reads the input and not padding."""
    share = 1.0
    for axis in zip(size, out, kernel, window.stride, window.padding, window.dilation, strict=True):
        pairs = axis[1] * axis[2]
        share *= sum(stop - start for _, start, stop, _ in _axis_taps(*axis)) / pairs if pairs else 1.0
    return share

"""Views of views: a chain of frozen steps over a base value.

Reading replays the chain; writing replaces the innermost part and rebuilds outwards, so that a write through any view of a view gives the
new value of the whole base.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from xla_core.ops.axes import with_size
from xla_core.ops.shape.views import VIEWS, Offset, slice_bounds
from xla_core.ops.table import Context


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operation: its schema name without namespace, its arguments after `self`, the shape that it gives.

    offset: where a select or a slice begins, counted from 0: apart from the other arguments, because it may change from step to
    step. None for all other views.
    """

    name: str
    args: tuple[Any, ...]
    shape: tuple[int, ...]
    offset: int | None = None

    def read(self, base: jax.Array, offset: Offset | None = None) -> jax.Array:
        """The viewed part of `base`. offset: instead of its own."""
        return VIEWS[self.name].read(base, self.shape, *self._placed(offset))

    def write(self, base: jax.Array, part: jax.Array, offset: Offset | None = None) -> jax.Array:
        """`base` with the viewed part replaced by `part`. offset: instead of its own."""
        return VIEWS[self.name].write(base, part, *self._placed(offset))

    def _placed(self, offset: Offset | None) -> tuple[Any, ...]:
        return self.args if self.offset is None else (self.offset if offset is None else offset, *self.args)


def select_step(shape: tuple[int, ...], dim: int, index: int) -> ViewStep:
    """`select.int` of a base of `shape`, by torch's arguments, which are in range."""
    dim = dim % len(shape)
    return ViewStep("select.int", (dim,), (*shape[:dim], *shape[dim + 1 :]), index % shape[dim])


def slice_step(shape: tuple[int, ...], dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> ViewStep:
    """`slice.Tensor` of a base of `shape`, by torch's arguments."""
    dim = dim % len(shape)
    low, high = slice_bounds(shape[dim], start, end)
    return ViewStep("slice.Tensor", (dim, step), with_size(shape, dim, -(-(high - low) // step)), low)


_PARTS = ("select.int", "slice.Tensor")


def followed(base: tuple[int, ...], steps: tuple[ViewStep, ...], step: ViewStep) -> tuple[ViewStep, ...]:
    """`steps` over a base of that shape, then `step`. Selects and slices in a row become one for each dimension, from the last to the
    first, so that the same part has the same steps, whatever the way to it.
    """
    if step.name not in _PARTS:
        return (*steps, step)
    first = next((number for number in reversed(range(len(steps))) if steps[number].name not in _PARTS), -1) + 1
    shape = steps[first - 1].shape if first else base
    return (*steps[:first], *_joined(shape, (*steps[first:], step)))


def _joined(shape: tuple[int, ...], parts: tuple[ViewStep, ...]) -> Iterator[ViewStep]:
    dims = list(range(len(shape)))
    starts, sizes, gaps = [0] * len(shape), list(shape), [1] * len(shape)
    for part in parts:
        dim = dims[part.args[0]]
        starts[dim] += (part.offset or 0) * gaps[dim]
        if part.name == "select.int":
            dims.remove(dim)
        else:
            sizes[dim], gaps[dim] = part.shape[part.args[0]], gaps[dim] * part.args[1]
    for dim in reversed(range(len(shape))):
        if dim not in dims:
            shape = (*shape[:dim], *shape[dim + 1 :])
            yield ViewStep("select.int", (dim,), shape, starts[dim])
        elif sizes[dim] != shape[dim]:
            shape = with_size(shape, dim, sizes[dim])
            yield ViewStep("slice.Tensor", (dim, gaps[dim] if sizes[dim] > 1 else 1), shape, starts[dim])


def _aligned(steps: tuple[ViewStep, ...], offsets: Sequence[Offset]) -> list[Offset | None]:
    rest = iter(offsets)
    return [None if step.offset is None else next(rest) for step in steps]


def read_view(base: jax.Array, steps: tuple[ViewStep, ...], offsets: Sequence[Offset]) -> jax.Array:
    """Read a chain of steps from `base`. offsets: of those steps that have one, instead of their own."""
    for step, offset in zip(steps, _aligned(steps, offsets), strict=True):
        base = step.read(base, offset)
    return base


def write_view(base: jax.Array, part: jax.Array, steps: tuple[ViewStep, ...], offsets: Sequence[Offset]) -> jax.Array:
    """`base` after `part` was written through a chain of steps. offsets: as for `read_view`."""
    if not steps:  # all of the base, in other strides
        return part
    placed = _aligned(steps, offsets)
    bases = [base]
    for step, offset in zip(steps[:-1], placed[:-1], strict=True):
        bases.append(step.read(bases[-1], offset))
    for step, inner, offset in zip(reversed(steps), reversed(bases), reversed(placed), strict=True):
        part = step.write(inner, part, offset)
    return part


@dataclass(frozen=True, slots=True)
class ReadView:
    """The lowering of a read through a chain of steps."""

    steps: tuple[ViewStep, ...]

    def __call__(self, context: Context, base: jax.Array, *offsets: Offset) -> jax.Array:
        """The viewed part of `base`. offsets: as for `read_view`."""
        return read_view(base, self.steps, offsets)


@dataclass(frozen=True, slots=True)
class WriteView:
    """The lowering of a write through a chain of steps."""

    steps: tuple[ViewStep, ...]

    def __call__(self, context: Context, base: jax.Array, part: jax.Array, *offsets: Offset) -> jax.Array:
        """`base` after `part` was written. offsets: as for `read_view`."""
        return write_view(base, part, self.steps, offsets)

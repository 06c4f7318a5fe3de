"""A program that is compiled and does not run: it gives buffers without memory, at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from xla_core.engine.compile.host_integers import HostIntegers
from xla_core.engine.placement.planned import PlannedBuffer


class PlannedProgram:
    """Stands for an executable. results: like those that it gives; integers: computes those of them that the host can know.

    compiled: what jax made of it, with the compiler's figures and the optimized text, if it is compiled for devices that are not there.
    """

    def __init__(
        self, results: Sequence[PlannedBuffer], integers: HostIntegers | None = None, compiled: jax.stages.Compiled | None = None
    ) -> None:
        self._results, self._integers, self.compiled = results, integers, compiled

    def __call__(self, *arguments: Any) -> list[PlannedBuffer]:
        """New buffers of the results' shapes, dtypes and shardings."""
        results = [result.copy() for result in self._results]
        return results if self._integers is None else self._integers.added(results, arguments)


def results_of(compiled: jax.stages.Compiled) -> list[PlannedBuffer]:
    """Buffers like the results of a compiled program."""
    shardings = jax.tree.leaves(compiled.output_shardings)
    outs = zip(jax.tree.leaves(compiled.out_info), shardings, strict=True)
    return [PlannedBuffer(tuple(out.shape), out.dtype, sharding) for out, sharding in outs]


def lowered(function: Any, arguments: list[Any]) -> Any:
    """A `jax.jit` function lowered for these arguments; planned buffers among them stand for what they describe."""
    return function.lower(*[argument.spec if isinstance(argument, PlannedBuffer) else argument for argument in arguments])


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """The results of a `jax.jit` function over buffers, a flat list; over planned ones, of a target, it is compiled and does not run."""
    if any(isinstance(argument, PlannedBuffer) for argument in arguments):
        return PlannedProgram(results_of(lowered(function, list(arguments)).compile()))(*arguments)
    return function(*arguments)

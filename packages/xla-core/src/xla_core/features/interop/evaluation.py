"""Evaluates recorded bodies over the arrays of a JAX program, under any of JAX's transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from xla_core.engine.compile.emit import typed
from xla_core.engine.runtime.client import current_recorder, placement_of
from xla_core.engine.tensor.interop import buffer_of
from xla_core.engine.tensor.tensor import wrap
from xla_core.engine.tracing.bodies import Body, HostNumber
from xla_core.engine.tracing.operations import bodies_alone, results_of, seed_of_turn
from xla_core.ops.table import Context

_WORD = (1 << 32) - 1
_KEPT = 256


def evaluated(body: Body, arguments: Sequence[Any], random_state: Any) -> list[Any]:
    """The results of `body` over arrays of its arguments' device dtypes, as one `jax.jit` function. 64-bit types must be enabled.

    Tensors from outside enter with their present values. random_state: (2,) uint32; each random operation derives its state from it, by the
    order of recording.
    """
    numbers = tuple(
        (captured.kind, type(captured.number), captured.number) if isinstance(captured, HostNumber) else None for captured in body.held
    )
    with jax.ensure_compile_time_eval():  # tensors from outside are not part of the traced program
        buffers = [None if isinstance(captured, HostNumber) else buffer_of(wrap(captured)) for captured in body.held]
    seeds = [seed_of_turn(random_state, np.uint32(seed & _WORD)) for seed in body.seeds]
    program = placement_of(current_recorder()).context
    results: list[Any] = _evaluator(bodies_alone([body])[0], numbers, program)([*arguments], buffers, seeds)
    return results


@lru_cache(maxsize=_KEPT)
def _evaluator(body: Body, numbers: tuple[Any, ...], program: Context) -> Callable[..., Any]:
    def recorded(arguments: list[Any], buffers: list[Any], seeds: list[Any]) -> list[Any]:
        captured = [buffer if number is None else typed(number[0], number[2]) for number, buffer in zip(numbers, buffers, strict=True)]
        return results_of(program, body, arguments, captured, seeds, None)

    return jax.jit(recorded)

"""Adam's update of lists of parameters as one operation, where torch makes it of eight `_foreach_*` (engine/tensor/optim.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from xla_core.ops.internal import define
from xla_core.ops.promote import Number
from xla_core.ops.table import TABLE, Context, op, overload_named

Value = Number | jax.Array
Arrays = list[jax.Array]

_ARGUMENTS = (
    "Tensor[] grads, Tensor{0}[] exp_avgs, Tensor{1}[] exp_avg_sqs, Tensor{2}[] max_exp_avg_sqs, float[] step_sizes, float[] roots, "
    "float weight, float beta2, float value, float eps, float? decay, float? shrink, bool maximize"
)


def _shapes(self: list[Any], grads: list[Any], means: list[Any], squares: list[Any], largest: list[Any], *_: Any) -> Any:
    return tuple([each.new_empty(each.shape) for each in tensors] for tensors in (self, means, squares, largest))


define(f"adam(Tensor[] self, {_ARGUMENTS.format('', '', '')}) -> (Tensor[], Tensor[], Tensor[], Tensor[])", _shapes)
define(f"adam_(Tensor(a!)[] self, {_ARGUMENTS.format('(b!)', '(c!)', '(d!)')}) -> ()", lambda *_: None)
ADAM = overload_named("xla_core::adam_")


@dataclass(frozen=True, slots=True)
class _Update:
    """The numbers of an update that all parameters share."""

    weight: Value
    beta2: Value
    value: Value
    eps: Value
    decay: Value | None
    shrink: Value | None
    maximize: bool

    def of(
        self, ctx: Context, param: jax.Array, grad: jax.Array, mean: jax.Array, square: jax.Array, largest: jax.Array | None,
        step_size: Value, root: Value,
    ) -> tuple[jax.Array, ...]:  # fmt: skip
        """New parameter, moments and largest second moment, by the rows that the list operations go by: the same numbers to the bit."""

        def row(name: str, *operands: Any, **numbers: Any) -> jax.Array:
            return TABLE[f"aten::{name}"].lower(ctx, *operands, **numbers)  # type: ignore[no-any-return]

        if self.maximize:
            grad = row("neg", grad)
        if self.shrink is not None:
            param = row("mul.Tensor", param, self.shrink)
        if self.decay is not None:
            grad = row("add.Tensor", grad, param, alpha=self.decay)
        mean = row("lerp.Scalar", mean, grad, self.weight)
        square = row("addcmul", row("mul.Tensor", square, self.beta2), grad, grad, value=self.value)
        if largest is not None:
            largest = row("maximum", largest, square)
        bound = row("sqrt", square if largest is None else largest)
        param = row("addcdiv", param, mean, row("add.Tensor", row("div.Tensor", bound, root), self.eps), value=step_size)
        return (param, mean, square) if largest is None else (param, mean, square, largest)


@op("xla_core::adam", scalars=("step_sizes", "roots", "weight", "beta2", "value", "eps", "decay", "shrink"), on_lists=True)
def _adam(
    ctx: Context, self: Arrays, grads: Arrays, means: Arrays, squares: Arrays, largest: Arrays,
    step_sizes: Sequence[Value], roots: Sequence[Value], *shared: Any,
) -> Arrays:  # fmt: skip
    """adam(...) -> (params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs); one step size and root for all parameters, or one for each."""
    update, count = _Update(*shared), len(self)
    sizes, divisors = (list(numbers) * (count if len(numbers) == 1 else 1) for numbers in (step_sizes, roots))
    bounds: Sequence[jax.Array | None] = largest or [None] * count
    columns = zip(ctx.out, self, grads, means, squares, bounds, sizes, divisors, strict=False)  # `out` is longer
    rows = [update.of(ctx.alone(inferred), *column) for inferred, *column in columns]
    return [row[kind] for kind in range(4 if largest else 3) for row in rows]

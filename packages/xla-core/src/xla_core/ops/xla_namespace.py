"""Define operators of the namespace `xla`, which users call: schema, shapes for tracers, lowering, gradient, and CPU tensors.

So torch.compile, torch.export and FakeTensor see each kernel as one operation. CPU tensors are computed on device `xla` and come back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
import torch

from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import tree_map
from xla_core.ops.table import Context, OpSpec, register_op

# Held for good: torch takes the operators back when their library is collected.
_LIBRARY: Any = torch.library.Library("xla", "FRAGMENT")
_moving: ContextVar[bool] = ContextVar("moving", default=False)  # whether CPU tensors of this call have been moved to the device


def define(
    schema: str,
    function: Callable[..., Any],
    shapes: Callable[..., Any],
    differentiable: Sequence[str] = (),
    smooth: Callable[..., Any] | None = None,
    keeps: bool = False,
) -> Any:
    """Define `torch.ops.xla.<name>`; returns its overload.

    schema: `name(arguments) -> results`, without overload. function: over jax arrays, called with the context and, by name, the schema's
    arguments; 64-bit integers arrive as int32. shapes: the same arguments as meta tensors to empty results. differentiable: the arguments
    that have a gradient, which is that of `jax.vjp`; then there is one result, and an operation `<name>_backward` beside. smooth: what to
    derive, where `function` rounds. keeps: the gradient runs `function` again, by a kernel that keeps more than its result; then there is
    an argument `differentiated` behind the others, with which the operator runs as its gradient will, and XLA makes one kernel of both.
    """
    name, _, rest = schema.partition("(")
    if keeps:
        arguments, _, results = schema.rpartition(") ->")
        forward = as_differentiated(function, differentiable)

        def chosen(context: Context, differentiated: bool, **given: Any) -> Any:
            return (forward if differentiated else function)(context, **given)

        _add(f"{arguments}, bool differentiated=False) ->{results}", chosen, lambda differentiated, **given: shapes(**given))
    else:
        _add(schema, function, shapes)
    if differentiable:
        arguments = rest.rpartition(") ->")[0]
        _add(f"{name}_backward(Tensor grad, {arguments}) -> Tensor[]", _pullback(smooth or function, differentiable), _like(differentiable))
        _differentiate(name, differentiable)
        _refuse_gradients(f"{name}_backward", "second derivative: compute with torch's own operations where one is needed")
    else:
        _refuse_gradients(name, "gradient: run it under torch.no_grad(), or compute with torch's own operations")
    return getattr(torch.ops.xla, name).default


def _add(schema: str, function: Callable[..., Any], shapes: Callable[..., Any]) -> None:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    overload = getattr(torch.ops.xla, name).default
    names = [argument.name for argument in overload._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in overload._schema.arguments if argument.has_default_value()}

    def named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}

    def lower(context: Context, *args: Any, **kwargs: Any) -> Any:
        with _widths(args):
            computed = function(context, **{key: _narrow(value) for key, value in named(args, kwargs).items()})
        results = computed if isinstance(computed, (tuple, list)) else [computed]
        cast = [jax.lax.convert_element_type(one, out.dtype) for one, out in zip(results, context.out, strict=True) if out is not None]
        return cast if isinstance(computed, (tuple, list)) else cast[0]

    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        if _moving.get():  # what is asked of shapes that the device refuses
            return shapes(**named(args, kwargs))
        moved = tree_map(lambda item: item.to("xla") if isinstance(item, torch.Tensor) else item, (args, kwargs))
        token = _moving.set(True)
        try:
            return tree_map(lambda item: item.cpu(), overload(*moved[0], **moved[1]))
        finally:
            _moving.reset(token)

    _LIBRARY.impl(name, lambda *args, **kwargs: shapes(**named(args, kwargs)), "Meta")
    _LIBRARY.impl(name, elsewhere, "CPU")
    register_op(OpSpec(f"xla::{name}", lower))


def _widths(args: Sequence[Any]) -> Any:
    """64-bit types only where an operand is computed in them: kernels are written for the others."""
    return jax.enable_x64(any(isinstance(item, jax.Array) and item.dtype in (np.float64, np.complex128) for item in args))


def _narrow(value: Any) -> Any:
    narrow = isinstance(value, jax.Array) and value.dtype == np.int64
    return jax.lax.convert_element_type(value, np.int32) if narrow else value


def _present(arguments: dict[str, Any], names: Sequence[str]) -> list[str]:
    return [name for name in names if arguments[name] is not None]


def _derived(function: Callable[..., Any], names: Sequence[str], context: Context, arguments: dict[str, Any]) -> tuple[Any, Any]:
    """`jax.vjp` of a function by those of these arguments that are present."""
    wanted = _present(arguments, names)

    def chosen(*values: Any) -> Any:
        return function(context, **{**arguments, **dict(zip(wanted, values, strict=True))})

    result, pull = jax.vjp(chosen, *[arguments[name] for name in wanted])
    return result, pull


def as_differentiated(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """`function`, computed as where its gradient by arguments of these names is wanted."""
    return lambda context, **arguments: _derived(function, names, context, arguments)[0]


def _pullback(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., list[Any]]:
    def backward(context: Context, grad: jax.Array, **arguments: Any) -> list[Any]:
        result, pull = _derived(function, names, context, arguments)
        return list(pull(jax.lax.convert_element_type(grad, result.dtype)))

    return backward


def _like(names: Sequence[str]) -> Callable[..., list[torch.Tensor]]:
    def shapes(grad: torch.Tensor, **arguments: Any) -> list[torch.Tensor]:
        return [contiguous_like(arguments[name]) for name in _present(arguments, names)]

    return shapes


def contiguous_like(tensor: torch.Tensor) -> torch.Tensor:
    """An empty tensor of the shape and dtype of another."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _differentiate(name: str, differentiable: Sequence[str]) -> None:
    overload, gradient = (getattr(torch.ops.xla, which).default for which in (name, f"{name}_backward"))
    names = [argument.name for argument in overload._schema.arguments]

    def keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*[item for item in inputs if isinstance(item, torch.Tensor)])
        ctx.rest = [None if isinstance(item, torch.Tensor) else (item,) for item in inputs]

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        inputs = [next(saved) if item is None else item[0] for item in ctx.rest]
        found = gradient(grad, *inputs[: len(gradient._schema.arguments) - 1])  # all but `differentiated`
        gradients = dict(zip(_present(dict(zip(names, inputs, strict=True)), differentiable), found, strict=True))
        return tuple(gradients.get(one) for one in names)

    torch.library.register_autograd(f"xla::{name}", backward, setup_context=keep, lib=_LIBRARY)


def _refuse_gradients(name: str, missing: str) -> None:
    def backward(ctx: Any, *grads: Any) -> Any:
        raise UnsupportedOperationError(f"xla::{name} has no {missing}")

    torch.library.register_autograd(f"xla::{name}", backward, lib=_LIBRARY)

"""Let autograd functions take and give nested tuples, lists and dicts of tensors."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from xla_core.base.private_torch import tree_flatten, tree_leaves, tree_unflatten

_Class = TypeVar("_Class", bound=type)


def pytreeify(cls: _Class) -> _Class:
    """A class decorator for `torch.autograd.Function`: `apply` takes nested tensors and gives those that `forward` returns.

    `backward` gets gradients nested as what `forward` returned, one argument for each member if that is a tuple; it returns one for each
    argument of `forward`, nested as the argument, or None for all of it. `ctx.needs_input_grad` has an entry for each leaf, in order.
    Raises TypeError for another class.
    """
    if not (isinstance(cls, type) and issubclass(cls, torch.autograd.Function)):
        raise TypeError(f"pytreeify decorates a torch.autograd.Function, got {cls!r}")
    user: Any = cls
    has_setup_context = user.setup_context is not torch.autograd.Function.setup_context

    class Flat(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            *leaves, call = inputs
            args = tree_unflatten(leaves, call.inputs)
            result = user.forward(*args) if has_setup_context else user.forward(ctx, *args)
            if has_setup_context:
                user.setup_context(ctx, args, result)
            outputs, call.outputs = tree_flatten(result)
            ctx.pytree_call = call
            return tuple(outputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            call = ctx.pytree_call
            nested = tree_unflatten(cotangents, call.outputs)
            gradients = user.backward(ctx, *nested) if type(nested) is tuple else user.backward(ctx, nested)
            return *call.flat(gradients if type(gradients) is tuple else (gradients,)), None

    def apply(*args: Any) -> Any:
        leaves, spec = tree_flatten(args)
        call = _CallNesting(spec, [len(tree_leaves(arg)) for arg in args])
        outputs = Flat.apply(*leaves, call)  # type: ignore[no-untyped-call]
        return tree_unflatten(outputs, call.outputs)

    Flat.__name__ = Flat.__qualname__ = cls.__name__
    attributes = {"apply": staticmethod(apply), "__doc__": cls.__doc__, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    decorated: Any = type(cls.__name__, (cls,), attributes)
    return decorated  # type: ignore[no-any-return]


class _CallNesting:
    """The nesting of one call: of its arguments, and of its results once they are there."""

    outputs: Any

    def __init__(self, inputs: Any, counts: list[int]) -> None:
        self.inputs = inputs
        self._counts = counts

    def flat(self, grads: tuple[Any, ...]) -> list[Any]:
        """Flatten the gradients of the arguments to gradients of all leaves. Raises RuntimeError if they do not match."""
        if len(grads) != len(self._counts):
            raise RuntimeError(f"backward returned {len(grads)} gradients for {len(self._counts)} arguments")
        leaves: list[Any] = []
        for index, (grad, count) in enumerate(zip(grads, self._counts, strict=True)):
            grad_leaves = [None] * count if grad is None else tree_leaves(grad)
            if len(grad_leaves) != count:
                raise RuntimeError(f"the gradient of argument {index} has {len(grad_leaves)} leaves, the argument {count}")
            leaves += grad_leaves
        return leaves

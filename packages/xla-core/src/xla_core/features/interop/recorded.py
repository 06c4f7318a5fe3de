"""A torch function recorded for arguments of certain shapes and dtypes, as a function of JAX arrays.

Its derivatives are torch's, which are recorded too, or JAX's derivatives of the lowerings. Torch's respect all that users say about
gradients; JAX's exist in every order and mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import jax
import torch
from jax import lax
from torch.overrides import TorchFunctionMode

from xla_core.base.errors import GraphBreakError, UnsupportedOperationError
from xla_core.base.private_torch import reads_data, tree_leaves
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import ScalarKind
from xla_core.engine.graph.pending_graph import Value
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.runtime.source_location import line_of_error
from xla_core.engine.tensor.jax_call import call_jax
from xla_core.engine.tracing.bodies import Body
from xla_core.engine.tracing.gradients import Differentiated, differentiated
from xla_core.features.interop.evaluation import evaluated

# The states that random operations are recorded with tell them apart, and are the same in each recording of a function.
_FIRST_STATE = 1


class Derivatives(Enum):
    """Which library's derivatives a function has."""

    TORCH = "torch"
    JAX = "jax"


@dataclass(frozen=True)
class RecordedFunction:
    """A function from a list of tensors to tensors, recorded for arguments like `avals`. name: for errors.

    enter: opens the contexts in which to record it and its gradient.
    """

    name: str
    function: Callable[[list[Any]], Sequence[Any]]
    avals: tuple[Aval, ...]
    wanted: tuple[bool, ...]  # for each argument, whether it may have a gradient
    derivatives: Derivatives
    enter: Callable[[], ExitStack]

    @cached_property
    def forward(self) -> Body:
        """The body that computes the results."""
        return self._parts.forward

    @cached_property
    def outs(self) -> tuple[Aval, ...]:
        """The avals of the results."""
        return self._parts.outs

    @cached_property
    def _parts(self) -> Differentiated:
        seen = self.derivatives is Derivatives.JAX
        return self._record(
            what_jax_sees(self.name, _ADVICE, self.function) if seen else self.function, [seen and needed for needed in self.wanted]
        )

    @cached_property
    def _gradient(self) -> Differentiated:
        return self._record(self.function, self.wanted)

    def _record(self, function: Callable[[list[Any]], Sequence[Any]], wanted: Sequence[bool]) -> Differentiated:
        recorder = current_recorder()
        with (
            lines_in_errors(),
            self.enter(),
            recorder.lock,
            jax.ensure_compile_time_eval(),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            before, recorder.seed = recorder.seed, _FIRST_STATE
            try:
                return differentiated(recorder, self.name, self.avals, wanted, function, range(len(self.avals)))
            finally:
                recorder.seed = before

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers."""
        return bool(self.forward.seeds)

    @property
    def first_random_line(self) -> str | None:
        """The user's line that draws the first random number."""
        graph = self.forward.graph
        seeds = {*graph.numbers_of(ScalarKind.SEED, False)}
        return next((graph.line(slot) for slot, (_, *operands) in graph.recorded() if not seeds.isdisjoint(operands)), None)

    @property
    def is_closed(self) -> bool:
        """Whether it uses no tensors from outside, which may be others at the next call."""
        return not any(isinstance(captured, Value) for captured in self.forward.held)

    def __call__(self, arguments: list[Any], random_state: Any) -> list[Any]:
        """The results over arrays of the device dtypes. random_state: (2,) uint32. 64-bit types must be enabled."""
        if self.derivatives is Derivatives.JAX:
            return evaluated(self.forward, arguments, random_state)[: len(self.outs)]
        results: list[Any] = self._with_torchs_gradient(arguments, random_state)
        return results

    @cached_property
    def _with_torchs_gradient(self) -> Any:
        count = len(self.outs)

        def primal(arguments: list[Any], state: Any) -> list[Any]:
            return evaluated(self.forward, arguments, state)[:count]

        def forward(arguments: list[Any], state: Any) -> Any:
            parts = self._gradient
            with jax.enable_x64(True):
                results = _once(self.name, lambda *arrays: evaluated(parts.forward, arrays[1:], arrays[0]))(state, *arguments)
            return results[:count], (results[count:], state)

        def backward(residuals: Any, cotangents: Any) -> Any:
            parts = self._gradient
            saved, state = residuals
            grads: list[Any] = [None] * len(self.avals)
            if parts.backward is not None:
                body, count = parts.backward, len(self.avals)
                tangents = [conj(cotangents[index]) for index in parts.differentiable]

                def pull(state: Any, *arrays: Any) -> list[Any]:
                    return evaluated(body, [None] * count + list(arrays), state)  # arguments that it needs were saved

                with jax.enable_x64(True):
                    grads_given = _once(self.name, pull)(state, *tangents, *saved)
                for index, grad in zip(parts.dependent, grads_given, strict=True):
                    if index < len(parts.wanted):  # others are tensors from outside
                        grads[parts.wanted[index]] = conj(grad)
            return grads, None

        run = jax.custom_vjp(primal)
        run.defvjp(forward, backward)
        return run


@contextmanager
def lines_in_errors() -> Iterator[None]:
    """Add the user's line to errors about code that cannot be recorded."""
    try:
        yield
    except (GraphBreakError, UnsupportedOperationError) as error:
        line = line_of_error(error)
        raise type(error)(f"{error} ({line})" if line else str(error)) from error


def conj(array: Any) -> Any:
    """Convert a gradient between torch and JAX, whose gradients of complex numbers are conjugates of each other."""
    return lax.conj(array) if jax.numpy.issubdtype(array.dtype, jax.numpy.complexfloating) else array


def _once(name: str, function: Callable[..., Any]) -> Any:
    """`function`, part of a derivative, such that differentiating it raises TypeError."""

    def refuse(primals: Any, tangents: Any) -> Any:
        raise TypeError(
            f"{name} has torch's gradients, which JAX cannot differentiate again: make it with to_jax(…, derivatives='jax') for second ones"
        )

    once = jax.custom_jvp(function)
    once.defjvp(refuse)
    return once


def what_jax_sees(name: str, advice: str, function: Callable[[list[Any]], Sequence[Any]]) -> Callable[[list[Any]], Sequence[Any]]:
    """`function` as JAX can differentiate it: `detach` stops JAX's gradients too, and other ways to change gradients raise an error."""

    def run(arguments: list[Any]) -> Sequence[Any]:
        with _Stops(name, advice):
            results = function(arguments)
        for custom in _custom_gradients(results):
            raise UnsupportedOperationError(f"{name} uses {custom}, an autograd.Function, which JAX cannot see: {advice}")
        return results

    return run


_ADVICE = "make it with to_jax(…, derivatives='torch')"
_DETACH = {torch.Tensor.detach, torch.detach}
_REFUSED: dict[Any, str] = {torch.Tensor.detach_: "detach_()", torch.detach_: "detach_()"}


class _Stops(TorchFunctionMode):
    """Records `detach` as JAX's `stop_gradient`, and refuses other ways to cut gradients."""

    def __init__(self, name: str, advice: str) -> None:
        super().__init__()
        self._name = name
        self._advice = advice

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        if func in _DETACH:
            return call_jax(lax.stop_gradient, (func(*args, **kwargs),))
        result = func(*args, **kwargs)
        refused = ".data" if reads_data(func) else _REFUSED.get(func)
        if refused or (not torch.is_grad_enabled() and any(map(_may_have_gradient, tree_leaves(result)))):
            how = refused or "torch.no_grad() or an autograd.Function"
            raise UnsupportedOperationError(f"{self._name} cuts gradients by {how}, which JAX cannot see: {self._advice}, or call detach()")
        return result


def _may_have_gradient(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and (item.is_floating_point() or item.is_complex())


def _custom_gradients(results: Sequence[Any]) -> list[str]:
    """The names of the user's autograd.Functions that `results` depend on."""
    stack = [result.grad_fn for result in results if isinstance(result, torch.Tensor)]
    seen: set[Any] = set()
    names: list[str] = []
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        owner = getattr(node, "_forward_cls", None)
        if owner is not None and not owner.__module__.startswith("xla_core."):
            names.append(owner.__name__)
        stack += [following for following, _ in node.next_functions]
    return names

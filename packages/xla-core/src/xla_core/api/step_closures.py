"""Step closures, which run after a step's graph, and the per-device state that queues them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from xla_core.api.closures import AsyncClosureHandler, ClosureHandler
from xla_core.api.conversion import xla_tensors
from xla_core.base.budgets import budget
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.runtime.client import current_index, recorder_of
from xla_core.engine.runtime.sync import after_step, before_step
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.engine.tensor.values import value_of
from xla_core.engine.tracing.tokens import token_here


@dataclass(slots=True, eq=False)
class _Queued:
    """A closure with its arguments. tensors: the xla tensors among the arguments."""

    closure: Callable[..., object]
    args: tuple[Any, ...]
    tensors: list[XLATensor]

    def __call__(self) -> object:
        return self.closure(*self.args)

    def hold(self) -> None:
        """Make the tensors' values part of the step's results, views included."""
        for tensor in self.tensors:
            value_of(tensor)  # a view keeps its last read value


class DeviceContext:
    """State of one device that lives as long as the process; users may add attributes."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = device
        self._token: Any = None
        self.step_closures: list[_Queued] = []
        self.async_step_closures: list[_Queued] = []
        self.closure_handler = ClosureHandler()
        self.async_closure_handler = AsyncClosureHandler()

    @property
    def all_reduce_token(self) -> Any:
        """The token that orders collectives: each takes the token of the previous one, and makes one for the next; None before the first.

        It stays one tensor; setting it writes to that tensor. So a program that is recorded apart can take and return it.
        """
        return token_here(self._token)

    @all_reduce_token.setter
    def all_reduce_token(self, token: Any) -> None:
        if self._token is None or token is None:
            self._token = token
        else:
            with torch.no_grad():
                self.all_reduce_token.copy_(token)

    def advance(self, before: Any, token: Any) -> None:
        """Keep the token of a collective that took `before`: like setting `all_reduce_token`, but without the cost of a copy."""
        same_kind = type(before) is XLATensor and type(token) is XLATensor and before._view is None and token._view is None
        if same_kind and before._storage.value.aval is token._storage.value.aval:
            before._storage.value = token._storage.value
        else:
            self.all_reduce_token = token


_contexts: dict[int, DeviceContext] = {}  # by the indices of the devices
_lock = threading.Lock()


@budget()
def device_context(device: torch.device | str | None = None) -> DeviceContext:
    """The one context of a device; None: the default device."""
    if device is None and (context := _contexts.get(current_index())) is not None:
        return context
    recorder = recorder_of(device)
    with _lock:
        context = _contexts.get(recorder.index)
        if context is None:
            context = _contexts[recorder.index] = DeviceContext(recorder.device)
        return context


@budget()
def add_step_closure(closure: Callable[..., object], args: tuple[Any, ...] = (), run_async: bool = False) -> None:
    """Call `closure(*args)` at the end of the current step of the default device.

    The tensors in `args` become results of the step's one execution. run_async: in a background thread.
    """
    _install()
    context = device_context()
    queued = _Queued(closure, tuple(args), xla_tensors(args))
    queued.hold()
    (context.async_step_closures if run_async else context.step_closures).append(queued)


def _hold_arguments(recorder: Recorder) -> None:
    """Make the present values of queued tensors results of the step that is about to run."""
    context = _contexts.get(recorder.index)
    for queued in (*context.step_closures, *context.async_step_closures) if context else ():
        queued.hold()


@budget(compiles=None, reads=None)
def run_step_closures(device: torch.device | str | None = None) -> DeviceContext:
    """Run the closures that are queued for a device: hand asynchronous ones over, then run the others here, in queue order.

    Raises what a closure raises (later closures are lost); RuntimeError if an asynchronous closure has failed before.
    """
    context = device_context(device)
    waiting, context.async_step_closures = context.async_step_closures, []
    now, context.step_closures = context.step_closures, []
    if waiting:
        context.async_closure_handler.run_all(waiting)
    context.closure_handler.run_all(now)
    return context


@functools.cache
def _install() -> None:
    """Let each step run closures, from the first closure on; after hooks that were added before (the metrics file)."""

    def hook(recorder: Recorder) -> None:
        if recorder.index in _contexts:
            run_step_closures(recorder.device)

    before_step(_hold_arguments)
    after_step(hook)

"""Step syncs and the regions that end with one: `torch_xla.sync`, `step`, `compile`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar, overload

import torch

from xla_core.api import eager, plugins
from xla_core.api.graph_limit import GraphLimit
from xla_core.base.budgets import budget
from xla_core.base.deprecation import Deprecation
from xla_core.base.metrics import Cause
from xla_core.engine.runtime import client
from xla_core.engine.runtime.source_location import enter_region, leave_region, open_scopes
from xla_core.engine.runtime.sync import forbid_reads, user_step
from xla_core.engine.tensor.dispatch import captures_lines

P = ParamSpec("P")
R = TypeVar("R")

_MARK_STEP = Deprecation("torch_xla.core.xla_model.mark_step", "torch_xla.sync", "xla-core 0.2.0", "2028-12")
_EXPERIMENTAL_COMPILE = Deprecation("torch_xla.experimental.compile", "torch_xla.compile", "xla-core 0.2.0", "2028-12")


def _step(wait: bool, log: str, cause: Cause = Cause.USER_SYNC, reset_scope: bool = False) -> None:
    plugins.load()  # plugins may have hooks for steps
    if reset_scope:
        check_scopes()
    user_step(client.current_recorder(), wait, log, cause)


def check_scopes() -> None:
    """Raise RuntimeError if this thread is in a scope of the profiler while operations keep their lines: it would span two programs."""
    scopes = open_scopes()
    if scopes and captures_lines():
        raise RuntimeError(
            f"a step may not end inside a scope of the profiler, and {'.'.join(scopes)} is open: "
            "leave the scope first, or give reset_scope=False"
        )


@budget(compiles=None, reads=None)
def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Run everything live on the default device as one graph; `wait`: until it is done. Then run the step closures.

    reset_scope: while `XLA_IR_DEBUG` keeps lines, raise RuntimeError inside an `xp.Trace`, which would span two programs.
    """
    _step(wait, "torch_xla.torch_xla::sync", reset_scope=reset_scope)


@budget(compiles=None, reads=None)
def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Run everything live on the default device as one graph. Deprecated: use `torch_xla.sync`, which takes the same arguments."""
    _MARK_STEP.warn()
    _step(wait, "torch_xla.core.xla_model::mark_step", reset_scope=reset_scope)


@budget()
@contextmanager
def step() -> Iterator[None]:
    """A sync on entry and on exit, also when the body raises."""
    _step(False, "torch_xla.torch_xla::sync", Cause.CLEAR_PENDING)
    try:
        yield
    finally:
        _step(False, "torch_xla.torch_xla::sync")


@budget()
def manual_seed(seed: int, device: torch.device | str | None = None) -> None:
    """Set the random state of a device; None: the default device. Raises ValueError unless `seed` is an unsigned 64-bit integer."""
    client.recorder_of(device).set_seed(seed)


@dataclass(slots=True)
class _RegionState:
    """The state to restore when a region is left."""

    eager: bool
    reads: str | None
    end_watch: Callable[[], None] | None


class _Stack(threading.local):
    """The regions that this thread is in."""

    def __init__(self) -> None:
        self.entered: list[_RegionState] = []


_stack = _Stack()


def _name_of(function: Callable[..., Any]) -> str:
    """The name of a function, or the type of another callable, such as a module."""
    return str(getattr(function, "__name__", type(function).__name__))


class Region:
    """A part of the program that is traced lazily, with a sync before and after; a context manager and a decorator.

    full_graph: reading a value inside raises GraphBreakError. max_different_graphs: the first distinct graph past this number
    raises TooManyGraphsError, and its step is lost. name: for analysis.
    """

    def __init__(self, full_graph: bool, name: str | None, max_different_graphs: int | None) -> None:
        if max_different_graphs is not None and max_different_graphs < 1:
            raise ValueError(f"max_different_graphs is {max_different_graphs}, must be at least 1")
        self._full_graph = full_graph
        self._name = name
        self._most = max_different_graphs
        self._label = f"torch_xla.compile of {name!r}" if name else "this region of torch_xla.compile"
        self._limit = None if max_different_graphs is None else GraphLimit(self._label, lambda: max_different_graphs)

    def named(self, function: Callable[..., Any]) -> Region:
        """A region like this one with the name of a function, if it has no name of its own."""
        return self if self._name else Region(self._full_graph, _name_of(function), self._most)

    def __enter__(self) -> Region:
        entered = _RegionState(eager.is_eager_mode(), None, None)
        eager.eager_mode(False)
        try:
            self.clear_pending()
        except BaseException:
            eager.eager_mode(entered.eager)
            raise
        if self._full_graph:
            entered.reads = forbid_reads(
                f"a value was read inside {self._label} with full_graph=True: "
                "move print, item() and other reads behind it, or leave full_graph off"
            )
        # After the sync, whose graph is not the region's.
        if self._limit is not None:
            entered.end_watch = self._limit.watch()
        _stack.entered.append(entered)
        enter_region(self._name)
        return self

    def clear_pending(self) -> None:
        """Run pending operations from before the region."""
        _step(False, "torch_xla.torch_xla::sync", Cause.CLEAR_PENDING)

    def __exit__(self, *exc: object) -> None:
        entered = _stack.entered.pop()
        try:
            if self._full_graph:
                # Before the sync: step closures run in it, and may read.
                forbid_reads(entered.reads)
            _step(False, "torch_xla.torch_xla::sync", Cause.COMPILE_REGION)
        finally:
            # After the sync: its program has the region's name.
            leave_region()
            if entered.end_watch is not None:
                entered.end_watch()
            eager.eager_mode(entered.eager)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        region = self.named(function)

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            with region:
                return function(*args, **kwargs)

        return wrapper


def _captured(function: Callable[P, R], region: Region, fallback: bool, verify: int | Literal["auto"] | None) -> Callable[P, R]:
    from xla_core.features.captured.function import CapturedFunction, remember
    from xla_core.features.captured.reports import Policy

    named = _name_of(function)
    region = region.named(function)
    captured = CapturedFunction(function, Policy(named, fallback, verify), lambda: region, region.clear_pending)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        return captured(args, kwargs)  # type: ignore[no-any-return]

    remember(wrapper, captured)
    return wrapper


@overload
def compile(
    f: Callable[P, R],
    full_graph: bool = ...,
    name: str | None = ...,
    max_different_graphs: int | None = ...,
    *,
    capture: bool = ...,
    fallback: bool = ...,
    verify_every: int | Literal["auto"] | None = ...,
) -> Callable[P, R]: ...
@overload
def compile(
    f: None = ...,
    full_graph: bool = ...,
    name: str | None = ...,
    max_different_graphs: int | None = ...,
    *,
    capture: bool = ...,
    fallback: bool = ...,
    verify_every: int | Literal["auto"] | None = ...,
) -> Region: ...
@budget()
def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
    *,
    capture: bool = False,
    fallback: bool = False,
    verify_every: int | Literal["auto"] | None = "auto",
) -> Any:
    """`f` traced lazily as one graph in each call, with a sync before and after; without `f` a decorator and context manager.

    full_graph: raise GraphBreakError if a value is read inside. max_different_graphs: raise TooManyGraphsError past this number.
    capture: run the Python of `f` until two calls make the same program, then launch that program without the Python, and put its results
    where they belong: see docs/fast-steps.md; only for a decorator. A function that cannot be captured raises CaptureError;
    fallback: record it at each call instead, with a warning. verify_every: record and compare each n-th call (1: all), none (None), or
    as many as 3 % of the time pays for ("auto"). One that differs from its program raises CapturedStepChanged.
    """
    region = Region(full_graph, name or (_name_of(f) if f is not None else None), max_different_graphs)
    if not capture:
        if fallback:
            raise ValueError("torch_xla.compile(fallback=True) says what to do where nothing can be captured: give capture=True, too")
        return region if f is None else region(f)
    if verify_every is not None and verify_every != "auto" and verify_every < 1:
        raise ValueError(f'verify_every is {verify_every}, must be at least 1, None or "auto"')
    decorate = functools.partial(_captured, region=region, fallback=fallback, verify=verify_every)
    return decorate if f is None else decorate(f)


def experimental_compile(func: Callable[P, R]) -> Callable[P, R]:
    """`func` traced lazily as one graph in each call. Deprecated: use `torch_xla.compile`."""
    _EXPERIMENTAL_COMPILE.warn()
    return compile(func)

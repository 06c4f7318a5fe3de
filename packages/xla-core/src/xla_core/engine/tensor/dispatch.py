"""One handler for each aten overload: a custom one, of a view, one that records by its row in the op table, or the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from xla_core.base import config
from xla_core.base.private_torch import OpOverload, call_kernel, has_kernel
from xla_core.engine.graph.entries import NamedLine
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.runtime.source_location import open_scopes, user_line
from xla_core.engine.tensor import attention, ctc, data_dependent, host_indices, views
from xla_core.engine.tensor.encode import recorder_among
from xla_core.engine.tensor.handlers import aliases, batch_norm, blanks, copies, reads, zeros
from xla_core.engine.tensor.observing import set_wrapper, wrapped
from xla_core.engine.tensor.plain import plainly
from xla_core.engine.tensor.recorded import on_cpu, recording_handler
from xla_core.engine.tensor.schema import Convention, Handler, calling, full_name, short_name
from xla_core.engine.tensor.tensor import set_dispatch
from xla_core.ops.table import TABLE, OpSpec, register

_CUSTOM: dict[str, Handler] = {
    name: handler
    for subject in (aliases, attention, batch_norm, blanks, copies, ctc, data_dependent, reads, zeros)
    for name, handler in subject.HANDLERS.items()
}
_THIS_DEVICE, _ANY_DEVICE = "PrivateUse1", "CompositeExplicitAutograd"
# Torch makes them of other operations, by lengths that stay on the CPU.
_BY_PARTS = frozenset({"aten::_pack_padded_sequence"})


def _make(func: OpOverload) -> Handler:
    """Make the handler of `func`: a custom one, of a view, one that records, or the CPU."""
    handler = _CUSTOM.get(short_name(func))
    if handler is not None:
        return plainly(handler)
    if full_name(func) not in TABLE and has_kernel(str(func.name()), "CompositeImplicitAutograd"):
        # Only inference mode lets composites through to here.
        return lambda args, kwargs: call_kernel(func, "CompositeImplicitAutograd", args, kwargs)
    if full_name(func) in _BY_PARTS:
        return partial(call_kernel, func, _ANY_DEVICE)
    if calling(func).convention is Convention.VIEW:
        return views.handler(func)
    if full_name(func) not in TABLE and func.namespace != "aten":
        for key in (_THIS_DEVICE, _ANY_DEVICE):
            if has_kernel(str(func.name()), key):  # a user's operation: its kernel is made of torch operations, which are recorded
                return partial(call_kernel, func, key)
    return recording_handler(func)


def has_custom_handler(func: OpOverload) -> bool:
    """Whether an overload is served here by more than a row of the op table, or without one."""
    return short_name(func) in _CUSTOM


def register_op(spec: OpSpec, replace: bool = False) -> OpSpec:
    """Add a row to the op table, also when the operation was already called and ran on the CPU.

    replace: a row of that name may be there, and is no longer used: for the cell of a notebook that runs again. What was recorded
    with it stays as it was.
    Raises RegistrationError for a name that is taken or that torch does not know, and for `scalars` that its schema does not have.
    """
    known = spec.name in TABLE
    register(spec, replace)
    for func in tuple(_handlers):
        if known or func in on_cpu:
            forget_handler(func)
    on_cpu.clear()
    return spec


_handlers: dict[Any, Handler] = {}  # by overload, without what `wrap_handlers` put around them
_capture = config.IR_DEBUG.get()


def handler_for(func: Any) -> Handler:
    """The handler of `func`, made at its first call and kept on the overload itself (the fastest place to find it)."""
    handler = _make(func)
    handler = with_lines(handler) if _capture else handler
    _handlers[func] = handler
    func._xla_handler = wrapped(handler)
    return func._xla_handler  # type: ignore[no-any-return]


def forget_handler(func: Any) -> None:
    """Make the handler of `func` anew at its next call."""
    del func._xla_handler
    _handlers.pop(func, None)


def forget_handlers(namespace: str) -> None:
    """`forget_handler` for all operations of a namespace: they have got kernels for this device."""
    for func in tuple(_handlers):
        if func.namespace == namespace:
            forget_handler(func)


def wrap_handlers(wrapper: Callable[[Handler], Handler] | None) -> None:
    """Put `wrapper(handler)` in the place of every handler, also of those that are made later; None: the handlers themselves again."""
    set_wrapper(wrapper)
    for func, handler in tuple(_handlers.items()):  # other threads may record
        func._xla_handler = wrapped(handler)


def capture_lines(on: bool) -> None:
    """Whether every recorded operation keeps the user's `file:line` (`XLA_IR_DEBUG`); off, each signature keeps its first."""
    global _capture
    _capture = on
    for func in tuple(_handlers):  # other threads may record
        forget_handler(func)


def captures_lines() -> bool:
    """Whether every recorded operation keeps the user's line."""
    return _capture


def with_lines(handler: Handler) -> Handler:
    """A handler that keeps the user's `file:line` of each operation that it records, with the scopes of the profiler around it."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder = recorder_among((args, tuple(kwargs.values()))) or current_recorder()
        before = recorder.pending_graph, len(recorder.pending_graph.entries)
        result = handler(args, kwargs)
        pending_graph = recorder.pending_graph
        line = user_line()
        if line is not None and pending_graph is before[0]:
            if scopes := open_scopes():
                line = NamedLine(line)
                line.scopes = scopes
            for slot in range(before[1], len(pending_graph.entries)):
                if type(pending_graph.entries[slot]) is tuple:
                    pending_graph.lines[slot] = line
        return result

    return run


set_dispatch(handler_for, host_indices.other_arguments)

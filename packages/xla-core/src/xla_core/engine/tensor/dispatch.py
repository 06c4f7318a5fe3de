"""One handler for each aten overload, made at its first call: `Route` lists the kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any

import torch

from xla_core.base import config
from xla_core.base.errors import RegistrationError
from xla_core.base.private_torch import OpOverload, call_kernel, has_kernel
from xla_core.engine.graph.entries import NamedLine
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.runtime.source_location import open_scopes, user_line
from xla_core.engine.tensor import data_dependent, fallback, host_indices, not_dense, streams, views
from xla_core.engine.tensor.encode import recorder_among
from xla_core.engine.tensor.handlers import aliases, as_kernels, blanks, copies, factorizations, factors, reads, tangents, zeros
from xla_core.engine.tensor.limited import with_check_of_dtype
from xla_core.engine.tensor.observing import set_wrapper, wrapped
from xla_core.engine.tensor.plain import plainly
from xla_core.engine.tensor.recorded import on_cpu, recording_handler, row_of
from xla_core.engine.tensor.schema import Convention, Handler, calling, dotted_name, full_name, short_name
from xla_core.engine.tensor.tensor import set_dispatch
from xla_core.ops.facts import TorchKernel
from xla_core.ops.table import TABLE, OpSpec, kernel_of, on_register

_custom: dict[str, Handler] = {
    name: handler
    for subject in (
        aliases,
        as_kernels,
        blanks,
        copies,
        data_dependent,
        factorizations,
        factors,
        not_dense,
        reads,
        streams,
        tangents,
        zeros,
    )
    for name, handler in subject.HANDLERS.items()
}
_OTHER_DTYPES = ("view.dtype", "view_as_complex")
_THIS_DEVICE, _ANY_DEVICE = "PrivateUse1", "CompositeExplicitAutograd"


class Route(Enum):
    """The ways in which an overload can be served, in words."""

    HANDLER = "by a handler of its own"
    COMPOSITE = "as the operators that torch composes it of"  # such an overload comes here in inference mode only
    OF_PARTS = "by torch's kernel for any device, made of other operators"
    VIEW = "as a view: nothing is recorded"
    USER_KERNEL = "by the kernel that its library has for this device"  # made of torch operators, which are recorded
    RECORDED = "recorded by a row of the op table"
    VIEW_IN_PLACE = "as a view: the tensor itself becomes it"
    CPU = "on the CPU: it has no lowering"


def add_handlers(handlers: Mapping[str, Handler]) -> None:
    """Serve overloads (`add.Tensor`, or `relu` for the default one) by these handlers from their next call on.

    Raises RegistrationError for a name that has a handler.
    """
    taken = sorted(_custom.keys() & handlers.keys())
    if taken:
        raise RegistrationError(f"{', '.join(taken)} has a handler already, there can be one: change that one, or call it from the new one")
    _custom.update(handlers)
    for func in tuple(_handlers):
        if short_name(func) in handlers:
            forget_handler(func)


def custom_handler(func: OpOverload) -> Handler | None:
    """The custom handler of an overload, if it has one."""
    return _custom.get(short_name(func))


def route(func: OpOverload) -> Route:
    """How calls of `func` are served."""
    name = full_name(func)
    if custom_handler(func) is not None:
        return Route.HANDLER
    if name not in TABLE and has_kernel(name, "CompositeImplicitAutograd"):
        return Route.COMPOSITE
    convention = calling(func).convention
    if convention is Convention.VIEW:
        return Route.OF_PARTS if func.namespace != "aten" and has_kernel(name, _ANY_DEVICE) else Route.VIEW
    if convention is Convention.FUNCTIONAL and kernel_of(str(func._schema.name)) is TorchKernel.OF_PARTS:
        return Route.OF_PARTS
    if name not in TABLE and func.namespace != "aten" and any(has_kernel(name, key) for key in (_THIS_DEVICE, _ANY_DEVICE)):
        return Route.USER_KERNEL
    if row_of(func) is not None:
        return Route.RECORDED
    return Route.VIEW_IN_PLACE if torch.Tag.inplace_view in func.tags else Route.CPU


def _make(func: OpOverload) -> Handler:
    match route(func):
        case Route.HANDLER:
            return plainly(_custom[short_name(func)])
        case Route.COMPOSITE:
            return lambda args, kwargs: call_kernel(func, "CompositeImplicitAutograd", args, kwargs)
        case Route.OF_PARTS:
            return _by_kernel(func, _ANY_DEVICE)
        case Route.VIEW:
            viewed = views.handler(func)
            return with_check_of_dtype(dotted_name(func), viewed) if short_name(func) in _OTHER_DTYPES else viewed
        case Route.USER_KERNEL:
            return _by_kernel(func, _THIS_DEVICE if has_kernel(full_name(func), _THIS_DEVICE) else _ANY_DEVICE)
        case Route.RECORDED:
            return recording_handler(func)
        case Route.VIEW_IN_PLACE:
            return plainly(views.inplace_handler(func))
        case Route.CPU:
            on_cpu.add(func)
            return plainly(partial(fallback.run, func))


def _by_kernel(func: OpOverload, key: str) -> Handler:
    """Calls of the kernel for a key. As on the CPU, torch differentiates operators of others by what their kernels call, unless somebody
    has registered how, and knows the views that they make.
    """
    if func.namespace == "aten":
        return partial(call_kernel, func, key)
    name = full_name(func)
    of_parts = not (has_kernel(name, "Autograd") or has_kernel(name, "AutogradPrivateUse1"))
    is_view = calling(func).convention is Convention.VIEW
    return partial(call_kernel, func, key, marks_views=is_view or of_parts, notes_gradients=of_parts)


def _forget_other_ways(spec: OpSpec, replaces: bool) -> None:
    """Forget the handlers that a new row may change: those that run on the CPU, or all of them if it replaces another row."""
    for func in tuple(_handlers):
        if replaces or func in on_cpu:
            forget_handler(func)
    on_cpu.clear()


_handlers: dict[Any, Handler] = {}  # by overload, without the wrapper of `wrap_handlers`
_capture = config.IR_DEBUG.get()


def handler_for(func: Any) -> Handler:
    """The handler of `func`, made at its first call and kept on the overload itself (the fastest place to find it)."""
    handler = _make(func)
    handler = with_lines(handler) if _capture else handler
    _handlers[func] = handler
    func._xla_handler = wrapped(handler)
    return func._xla_handler  # type: ignore[no-any-return]


def forget_handler(func: Any) -> None:
    """Drop the handler of `func`: its next call makes another one."""
    del func._xla_handler
    _handlers.pop(func, None)


def forget_handlers(namespace: str) -> None:
    """`forget_handler` for all operations of a namespace, which have kernels for this device now."""
    for func in tuple(_handlers):
        if func.namespace == namespace:
            forget_handler(func)


def wrap_handlers(wrapper: Callable[[Handler], Handler] | None) -> None:
    """Replace every handler, also those made later, by `wrapper(handler)`; None: use the handlers themselves again."""
    set_wrapper(wrapper)
    for func, handler in tuple(_handlers.items()):  # other threads may record
        func._xla_handler = wrapped(handler)


def capture_lines(on: bool) -> None:
    """Let every recorded operation keep the user's `file:line` (`XLA_IR_DEBUG`); if not `on`, each signature keeps its first."""
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
on_register(_forget_other_ways)

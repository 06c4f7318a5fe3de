"""Make the handler that records an overload by its row in the op table, with the wrappers around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from xla_core.base.errors import RegistrationError
from xla_core.base.private_torch import OpOverload, is_watched
from xla_core.engine.graph.aval import Aval
from xla_core.engine.tensor import data_dependent, fallback, host_indices, lazy_counters, wrapping
from xla_core.engine.tensor.encode import Call
from xla_core.engine.tensor.limited import holds_for
from xla_core.engine.tensor.plain import plainly
from xla_core.engine.tensor.record import factory, functional, mutating
from xla_core.engine.tensor.schema import Convention, Handler, calling, full_name, functional_of, is_factory, short_name
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.ops.limits import LIMITS
from xla_core.ops.table import TABLE, OpSpec

_COUNTS: dict[str, Call] = {}
on_cpu: set[OpOverload] = set()  # overloads without a row so far, which run on the CPU


def row_of(func: OpOverload) -> tuple[OpOverload, OpSpec] | None:
    """The functional form of `func` and its row in the op table; None if there is none."""
    functional_form = func if calling(func).convention is Convention.FUNCTIONAL else functional_of(func)
    spec = None if functional_form is None else TABLE.get(full_name(functional_form))
    return None if functional_form is None or spec is None else (functional_form, spec)


def recording_handler(func: OpOverload) -> Handler:
    """The handler that records `func` by its row in the op table. Raises RegistrationError for an overload without one."""
    convention, row = calling(func).convention, row_of(func)
    if row is None:
        raise RegistrationError(f"{full_name(func)} has no lowering to be recorded by: register one with register_op")
    functional_form, spec = row
    call = _call(func, functional_form, spec)
    if is_factory(func):
        handler = factory(call)
    elif convention is Convention.FUNCTIONAL:
        handler = functional(call)
    else:
        handler = mutating(call)
        if spec.adds_gradients and func._schema.name.endswith("_"):
            handler = wrapping.with_first_gradient(handler)
    wrapped = wrapping.with_default_values(func, functional_form, handler)
    if convention is Convention.FUNCTIONAL:
        wrapped = wrapping.with_note_of_filling(spec, wrapped)
    wrapped = wrapping.with_sharding_of_operand(spec, wrapped)
    wrapped = host_indices.with_host_indices(func, wrapping.with_other_devices(func, wrapping.with_generator_by_position(func, wrapped)))
    return handler if wrapped is handler else plainly(wrapped)


@cache
def recorded(func: OpOverload) -> Handler:
    """`recording_handler`, for a handler of its own that records some of its calls."""
    return recording_handler(func)


def record(func: OpOverload, *args: Any) -> Any:
    """`func(*args)` for tensors that need no gradient. Skips torch's dispatcher, half of the time, unless something watches it."""
    if is_watched():
        return func(*args)
    arguments: list[Any] = []
    for arg in args:
        listed = type(arg) is list or type(arg) is tuple
        for item in arg if listed else (arg,):
            if type(item) is not XLATensor and isinstance(item, torch.Tensor):
                return func(*args)
        arguments.append(list(arg) if listed else arg)  # as torch passes it
    return XLATensor.__torch_dispatch__(func, (), tuple(arguments))


def _call(func: OpOverload, functional_form: OpOverload, spec: OpSpec) -> Call:
    """The `Call` of `func`. If another row served `func` before, its counts go on."""
    call = _COUNTS.get(full_name(func))
    if call is None or call.spec is not spec:
        fresh = Call(func, functional_form, spec, _otherwise(func))
        if call is not None:
            fresh.count, fresh.packed = call.count, call.packed
        call = _COUNTS[full_name(func)] = fresh
    return call


def forget_limited(platform: str) -> None:
    """Forget the signatures, recorded for another platform, for which a limit of this one holds: their next call asks anew."""
    if platform not in LIMITS:
        return
    for call in tuple(_COUNTS.values()):  # other threads may record
        for key, signature in tuple(call.signatures.items()):
            if holds_for(platform, signature, [part for part in key if isinstance(part, Aval)]):
                call.signatures.pop(key, None)


def _otherwise(func: OpOverload) -> Callable[..., Any]:
    """The handler of calls that an operation's row refuses: it reads the size of the result, or runs on the CPU."""
    by_data = data_dependent.REFUSED.get(short_name(func))
    if by_data is None:
        return plainly(partial(fallback.run, func))

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _COUNTS[full_name(func)].count += 1
        return by_data(*args, **kwargs)

    return plainly(run)


lazy_counters.register(_COUNTS)

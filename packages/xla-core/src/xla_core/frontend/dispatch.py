"""One plan for each aten overload: by hand, as a view, recorded by its row in the op table, or on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from xla_core import config
from xla_core._compat import OpOverload, call_kernel, has_kernel
from xla_core.frontend import accounting, ctc, data_dependent, fallback, host_indices, special, views, wrapping
from xla_core.frontend.encode import Call, recorder_among, remember
from xla_core.frontend.plain import ours, plainly
from xla_core.frontend.record import Plan, factory, functional, mutating
from xla_core.frontend.schema import Convention, calling, full_name, functional_of, is_factory, short_name
from xla_core.frontend.tensor import XLATensor, view_of
from xla_core.ops.table import TABLE, OpSpec, register
from xla_core.runtime.client import current_recorder
from xla_core.runtime.origin import user_line

_BY_HAND: dict[str, Plan] = {**special.HANDLERS, **data_dependent.HANDLERS, **ctc.HANDLERS}
_COUNTS: dict[str, Call] = {}
_THIS_DEVICE, _ANY_DEVICE = "PrivateUse1", "CompositeExplicitAutograd"


def view(func: OpOverload) -> Plan:
    """Plan of a view: no entry on the tape, only a longer chain of steps."""
    child, root = views.child, views.root
    known: dict[Any, Any] = {}

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if type(tensor) is not XLATensor:
            tensor = ours(tensor)
        storage = tensor._storage
        parent = tensor._view or storage.value.aval.root or root(storage.value.aval)
        key = (parent, *[tuple(arg) if type(arg) is list else arg for arg in args[1:]])
        spec = None if kwargs else known.get(key)
        if spec is None:
            spec = child(parent, func, args[1:], kwargs)
            if not kwargs:
                remember(known, key, spec)
        if type(spec) is list:
            return [view_of(storage, one) for one in spec]
        return view_of(storage, spec)

    return run


def make_plan(func: OpOverload) -> Plan:
    """Make the handler of `func`: by hand, as a view, natively, or on the CPU."""
    handler = _BY_HAND.get(short_name(func))
    if handler is not None:
        return plainly(handler)
    if full_name(func) not in TABLE and has_kernel(str(func.name()), "CompositeImplicitAutograd"):
        # Only inference mode lets composites through to here.
        return lambda args, kwargs: call_kernel(func, "CompositeImplicitAutograd", args, kwargs)
    if calling(func).convention is Convention.VIEW:
        return view(func)
    if full_name(func) not in TABLE and func.namespace != "aten":
        for key in (_THIS_DEVICE, _ANY_DEVICE):
            if has_kernel(str(func.name()), key):  # a user's operation: its kernel is made of torch operations, which are recorded
                return partial(call_kernel, func, key)
    return recording_plan(func)


_on_cpu: set[OpOverload] = set()


def register_op(spec: OpSpec, replace: bool = False) -> OpSpec:
    """Add a row to the op table, also when the operation was already called and ran on the CPU.

    replace: a row of that name may be there, and is no longer used: for the cell of a notebook that runs again. What was recorded
    with it stays as it was.
    Raises RegistrationError for a name that is taken or that torch does not know, and for `scalars` that its schema does not have.
    """
    known = spec.name in TABLE
    register(spec, replace)
    outdated = _planned if known else _on_cpu & _planned
    for func in tuple(outdated):
        forget_plan(func)
    _planned.difference_update(tuple(outdated))
    _on_cpu.clear()
    return spec


def recording_plan(func: OpOverload) -> Plan:
    """The plan that records `func` by its row in the op table, or runs it on the CPU if it has none."""
    convention = calling(func).convention
    functional_form = func if convention is Convention.FUNCTIONAL else functional_of(func)
    spec = None if functional_form is None else TABLE.get(full_name(functional_form))
    if spec is None or functional_form is None:
        decomposed = special.decomposition(func)
        if decomposed is None:
            _on_cpu.add(func)
        return plainly(decomposed or partial(fallback.run, func))
    call = _call(func, functional_form, spec)
    if is_factory(func):
        plan = factory(call)
    elif convention is Convention.FUNCTIONAL:
        plan = functional(call)
    else:
        plan = mutating(call)
    wrapped = wrapping.imaging(func, wrapping.noting(func, wrapping.filling(func, functional_form, plan)))
    wrapped = host_indices.moving(func, wrapping.elsewhere(func, wrapping.generating(func, wrapped)))
    return plan if wrapped is plan else plainly(wrapped)


def _call(func: OpOverload, functional_form: OpOverload, spec: OpSpec) -> Call:
    """The `Call` of `func`, which may have been called before, perhaps by another row."""
    found = _COUNTS.get(full_name(func))
    if found is None or found.spec is not spec:
        made = Call(func, functional_form, spec, _otherwise(func))
        if found is not None:
            made.count, made.packed = found.count, found.packed
        found = _COUNTS[full_name(func)] = made
    return found


def _otherwise(func: OpOverload) -> Callable[..., Any]:
    """The handler of calls that an operation's row refuses: a read of how large the result is, or the CPU."""
    by_data = data_dependent.REFUSED.get(short_name(func))
    if by_data is None:
        return plainly(partial(fallback.run, func))

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _COUNTS[full_name(func)].count += 1
        return by_data(*args, **kwargs)

    return plainly(run)


_planned: set[OpOverload] = set()
_capture = config.IR_DEBUG.get()


def plan_for(func: Any) -> Plan:
    """The plan of `func`, made at its first call and kept on the overload itself (the fastest place to find it)."""
    plan = make_plan(func)
    func._xla_plan = _with_lines(plan) if _capture else plan
    _planned.add(func)
    return func._xla_plan  # type: ignore[no-any-return]


def forget_plan(func: Any) -> None:
    """Make the plan of `func` anew at its next call."""
    del func._xla_plan


def capture_lines(on: bool) -> None:
    """Whether every recorded operation keeps the user's `file:line` (`XLA_IR_DEBUG`); off, each signature keeps its first."""
    global _capture
    _capture = on
    for func in tuple(_planned):  # other threads may record
        forget_plan(func)
    _planned.clear()


def _with_lines(plan: Plan) -> Plan:
    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder = recorder_among((args, tuple(kwargs.values()))) or current_recorder()
        before = recorder.tape, len(recorder.tape.entries)
        result = plan(args, kwargs)
        tape = recorder.tape
        line = user_line()
        if line is not None and tape is before[0]:
            for slot in range(before[1], len(tape.entries)):
                if type(tape.entries[slot]) is tuple:
                    tape.lines[slot] = line
        return result

    return run


accounting.register(_COUNTS)

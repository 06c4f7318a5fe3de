"""Handlers that record: a signature look-up, one entry on the pending graph, new tensors or new values of old ones.

Everything slow (shape inference, choosing a lowering, the user's line) happens once for each signature, in `infer`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from xla_core.base.private_torch import OpOverload, make_wrapper
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.pending_graph import NOBODY, PendingGraph, Recorder, Value
from xla_core.engine.graph.signature import Signature
from xla_core.engine.runtime.client import recorder_of
from xla_core.engine.runtime.pending_limit import relieve
from xla_core.engine.tensor import infer
from xla_core.engine.tensor.encode import Call, encode, recorder_among, remember, two_devices
from xla_core.engine.tensor.overlaps import check_overlap
from xla_core.engine.tensor.plain import PLAIN, mixed, ours, tensor_behind
from xla_core.engine.tensor.schema import Handler
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor, wrap
from xla_core.engine.tensor.writes import write

# Globals: recording looks them up for each operation, without going through their modules.
_ref = weakref.ref
_strided = torch.strided
_default_dtype = torch.get_default_dtype


def functional(call: Call) -> Handler:
    """Handler of an overload that makes new tensors from its operands."""
    signatures = call.signatures

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first = args[0] if args else None
        recorder = first._storage.value.recorder if type(first) is XLATensor else recorder_among(args) or recorder_among(kwargs.values())
        if recorder is None:
            raise mixed(next(arg for arg in args if isinstance(arg, torch.Tensor)))
        with recorder.lock:
            pending_graph = recorder.pending_graph
            key, slots = encode(call, recorder, pending_graph, args, kwargs)
            head = key[0]
            # The dtype of integers that are divided; they may also be in a list, or come after a number.
            if type(head) is not Aval or head.integral:
                key.append(_default_dtype())
            signature = signatures.get(tuple(key))
            if signature is None:
                signature = infer.signature(call, recorder, args, kwargs)
                if signature is None:
                    return call.otherwise(args, kwargs)
                signature = remember(signatures, tuple(key), signature)
            call.count += 1
            outs = signature.outs
            if signature.pack is not None:
                return _several(call, recorder, pending_graph, signature, slots)
            aval: Any = outs[0]
            # `encode` leaves the first place free, so that the entry takes no second list.
            slots[0] = signature
            entries = pending_graph.entries
            # `define`, and `wrap` below, without their calls: this runs for each operation. By itself, a value set field by field
            # takes 0.22 µs, one with an `__init__` 0.29 (CPython 3.11).
            value = Value()
            value.aval = aval
            value.recorder = recorder
            value.pending_graph = pending_graph
            value.slot = len(entries)
            value.buffer = None
            value.shared = False
            entries.append(tuple(slots))
            pending_graph.refs.append(_ref(value))
        storage = Storage()
        storage.value = value
        storage.annotations = None
        tensor = make_wrapper(XLATensor, aval.shape, aval.strides, None, None, aval.dtype, _strided, recorder.device)
        tensor._storage = storage
        tensor._view = None
        tensor._seen = None
        if value.slot >= pending_graph.limit:
            relieve(recorder, (value,))
        return tensor

    return run


def _several(call: Call, recorder: Recorder, pending_graph: PendingGraph, signature: Signature, slots: list[Any]) -> Any:
    """Record an operation with several results, or with a list of them."""
    call.packed += 1
    values = define(recorder, pending_graph, signature, slots)
    if len(pending_graph.entries) > pending_graph.limit:
        relieve(recorder, [value for value in values if value is not None])
    return (signature.pack or _bare)(values)


def _bare(values: list[Any]) -> XLATensor:
    return wrap(values[0])


def in_place(call: Call) -> Handler:
    """Handler of an overload that writes to its first argument only: compute functionally, then replace the value."""
    signatures = call.signatures
    anywhere = call.spec.overlapping_writes

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = target = args[0]
        if type(target) is not XLATensor:
            target = ours(target)
        storage = target._storage
        for arg in args[1:]:
            kind = type(arg)
            if kind is not XLATensor:
                if kind not in PLAIN or (arg := tensor_behind(arg)) is None:
                    continue
            if arg._storage is storage:
                check_overlap(call.func, storage, args, kwargs)
                break
        recorder = storage.value.recorder
        with recorder.lock:
            pending_graph = recorder.pending_graph
            key, slots = encode(call, recorder, pending_graph, args, kwargs)
            signature = signatures.get(tuple(key))
            if signature is None:
                signature = infer.signature(call, recorder, args, kwargs, [given])
                if signature is None:
                    return call.otherwise(args, kwargs)
                signature = remember(signatures, tuple(key), signature)
            call.count += 1
            slots[0] = signature
            entries = pending_graph.entries
            value = Value()
            value.aval = signature.outs[0]  # type: ignore[assignment]
            value.recorder = recorder
            value.pending_graph = pending_graph
            value.slot = len(entries)
            value.buffer = None
            value.shared = False
            entries.append(tuple(slots))
            pending_graph.refs.append(_ref(value))
            if target._view is None:
                storage.value = value
            else:
                write(given, value, anywhere)
        if value.slot >= pending_graph.limit:
            relieve(recorder, (value,))
        return given

    types = [str(argument.type) for argument in call.func._schema.arguments]
    place = next((place for place, name in enumerate(types) if "List" in name and "Tensor" in name), None)
    return run if place is None else _looking_into_list(call, run, place)


_FILL_OUT = frozenset({"aten::linspace", "aten::logspace", "aten::arange", "aten::range"})
"""Operators that resize `out` only if it has another number of elements than their result."""


def _looking_into_list(call: Call, run: Handler, place: int) -> Handler:
    """`run` of an overload with a list of tensors (indices) at a place, which may show parts of what is written to."""

    def checked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target = args[0]
        storage = (target if type(target) is XLATensor else ours(target))._storage
        for item in args[place]:
            if type(item) is XLATensor and item._storage is storage:
                check_overlap(call.func, storage, args, kwargs)
                break
        return run(args, kwargs)

    return checked


def mutating(call: Call) -> Handler:
    """Handler of any other overload that writes to arguments: lists, several, out=."""
    arguments = call.func._schema.arguments
    names = [argument.name for argument in arguments]
    outs = frozenset(argument.name for argument in arguments if argument.is_out)
    places = [names.index(name) for name in call.mutated]
    if places == [0] and not outs and call.fresh == 0 and str(arguments[0].type) == "Tensor":
        return in_place(call)
    signatures = call.signatures
    lists = call.spec.on_lists
    takes_dtype = bool(outs) and "dtype" not in names and any(argument.name == "dtype" for argument in call.functional._schema.arguments)
    fills = bool(outs) and call.func._schema.name in _FILL_OUT

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        targets: list[Any] = [
            args[place] if place < len(args) else kwargs.get(name) for place, name in zip(places, call.mutated, strict=True)
        ]
        inputs = {name: arg for name, arg in kwargs.items() if name not in outs} if outs else kwargs
        recorder = recorder_among(targets) or recorder_among((args, tuple(kwargs.values())))
        if recorder is None:
            raise mixed(next(arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)))
        if outs:
            _check_outs(recorder, targets)
            if takes_dtype:  # what is made is of the dtype of `out`
                inputs = {**inputs, "dtype": targets[0].dtype}
        _check_overlaps(call.func, targets, args, kwargs)
        with recorder.lock:
            pending_graph = recorder.pending_graph
            key, slots = encode(call, recorder, pending_graph, args, inputs)
            if lists and places == [0] and _share_data(targets[0], slots):
                return _one_at_a_time(run, args, kwargs)
            if outs:
                key.append(infer.out_key(targets))
            signature = signatures.get(tuple(key))
            if signature is None:
                signature = infer.signature(call, recorder, args, inputs, targets, outs)
                if signature is None:
                    return call.otherwise(args, kwargs)
                signature = remember(signatures, tuple(key), signature)
            call.count += 1
            values = define(recorder, pending_graph, signature, slots)
            fresh = 0 if fills and _fill(targets[0], values[0]) else len(values) - _assign_all(targets, values)
        if len(pending_graph.entries) > pending_graph.limit:
            relieve(recorder, [value for value in values if value is not None])
        if lists:
            for target in targets:
                count_writes(target)
        return _returned(call, values[:fresh], targets)

    return run


def _fill(target: torch.Tensor, value: Any) -> bool:
    """Write a vector to a tensor of another shape and as many elements, in their order. Returns False if these are not its shapes."""
    if target.numel() != math.prod(value.aval.shape) or tuple(target.shape) == value.aval.shape:
        return False
    torch.ops.aten.copy_.default(target, torch.ops.aten.view.default(wrap(value), target.shape))
    return True


def _check_overlaps(func: OpOverload, targets: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for target in targets:
        if type(target) is XLATensor:
            storage = target._storage
            if any([type(arg) is XLATensor and arg._storage is storage and arg is not target for arg in args]):
                check_overlap(func, storage, args, kwargs)


def _share_data(targets: Sequence[Any], slots: list[Any]) -> bool:
    """Whether a list has tensors that show the same data. slots: as `encode` gives them, those of the list first."""
    if len(set(slots[1 : len(targets) + 1])) < len(targets):
        return True
    if any([type(target) is XLATensor and target._view is not None for target in targets]):
        return len({ours(target)._storage for target in targets}) < len(targets)
    return False


def _one_at_a_time(run: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """What an operation on lists does to each tensor of the first list in turn, so that the next one sees what was written."""
    for place in range(len(args[0])):
        run(tuple([[arg[place]] if isinstance(arg, (list, tuple)) else arg for arg in args]), kwargs)


def count_writes(tensors: list[torch.Tensor]) -> None:
    """Count a write to each tensor, for backward passes that saved it; tensors of inference mode keep no count."""
    try:
        increment_version(tensors)
    except RuntimeError:
        increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def _check_outs(recorder: Recorder, targets: list[Any]) -> None:
    """Check the devices of out= tensors, which are no operands, so that encoding does not see them."""
    for target in targets:
        for tensor in target if isinstance(target, (list, tuple)) else (target,):
            if tensor is not None and ours(tensor)._storage.value.recorder is not recorder:
                raise two_devices(recorder, ours(tensor)._storage.value.recorder)


def define(recorder: Recorder, pending_graph: PendingGraph, signature: Signature, slots: list[Any]) -> list[Value | None]:
    """Record an operation and make a value for each of its results. slots: a free place, then the operands', as `encode` gives them."""
    outs = signature.outs
    if not outs:
        return []
    slots[0] = signature
    entries = pending_graph.entries
    slot = len(entries)
    values: list[Value | None] = []
    refs: list[weakref.ref[Value]] = []
    if len(outs) > 1:
        refs.append(NOBODY)
        slot += 1
    for aval in outs:
        if aval is None:
            values.append(None)
            refs.append(NOBODY)
        else:
            value = Value()
            value.aval = aval
            value.recorder = recorder
            value.pending_graph = pending_graph
            value.slot = slot
            value.buffer = None
            value.shared = False
            values.append(value)
            refs.append(_ref(value))
        slot += 1
    # Before the references: an entry without them tells `PendingGraph.mend` that it is half made.
    entries.append(tuple(slots))
    if len(outs) > 1:
        entries.extend([None] * len(outs))
    pending_graph.refs.extend(refs)
    return values


def _assign_all(targets: list[Any], values: list[Value | None]) -> int:
    """Write the last values to the mutated arguments (tensors and lists of them); returns how many tensors these are."""
    flat: list[Any] = []
    for target in targets:
        if type(target) is list or type(target) is tuple:
            flat += target
        else:
            flat.append(target)
    # Results that are new tensors come first.
    for target, value in zip(flat, values[len(values) - len(flat) :], strict=True):
        if target is not None and value is not None:
            shown = target if type(target) is XLATensor else ours(target)
            storage = shown._storage
            # Avals are interned: no other shape, so `write` has nothing to check.
            if shown._view is None and storage.value.aval is value.aval:
                storage.value = value
            else:
                write(target, value)
    return len(flat)


def _returned(call: Call, fresh: list[Value | None], targets: list[Any]) -> Any:
    """The results in the schema's order: new tensors first, then the mutated arguments."""
    returns = call.func._schema.returns
    if not returns:
        return None
    results: list[Any] = [None if value is None else wrap(value) for value in fresh]
    results += targets[: len(returns) - len(results)]
    return results[0] if len(returns) == 1 else tuple(results)


def factory(call: Call) -> Handler:
    """Handler of an overload that makes a tensor from no tensor, on the device it is told or the default one."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder = recorder_of(kwargs.get("device") or "xla")
        with recorder.lock:
            pending_graph = recorder.pending_graph
            key, slots = encode(call, recorder, pending_graph, args, kwargs)
            key.append(torch.get_default_dtype())
            signature = call.signatures.get(tuple(key))
            if signature is None:
                signature = infer.signature(call, recorder, args, kwargs)
                if signature is None:
                    return call.otherwise(args, kwargs, recorder)
                signature = remember(call.signatures, tuple(key), signature)
            call.count += 1
            return _several(call, recorder, pending_graph, signature, slots)

    return run

"""From the arguments of a call to a signature's key and operand slots. This is the hottest code of recording."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from xla_core.base import config
from xla_core.base.errors import DeviceMismatchError
from xla_core.base.private_torch import OpOverload
from xla_core.engine.graph.aval import aval_of
from xla_core.engine.graph.entries import FLOAT_FIXED, FLOAT_INPUT, INT_FIXED, INT_INPUT, SEED, ScalarInput, ScalarKind
from xla_core.engine.graph.pending_graph import NOBODY, PendingGraph, Recorder
from xla_core.engine.graph.signature import Signature
from xla_core.engine.runtime.transfer import upload
from xla_core.engine.tensor.generator import generator_for
from xla_core.engine.tensor.plain import PLAIN, mixed, storage_of, tensor_behind
from xla_core.engine.tensor.schema import calling, dotted_name
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.ops.table import OpSpec

# Arguments that say where a result lives, not what it is.
_PLACEMENT = frozenset({"device", "layout", "pin_memory", "non_blocking", "generator"})
_NO_CONSTANTS = config.NO_SPECIAL_SCALARS.get()
_FLOAT = ScalarKind.FLOAT
_INT = frozenset({int})


class Call:
    """An overload as recording sees it: its row, which arguments are changing numbers, its signatures, the count of its calls.

    scalars: positions and names of arguments whose value may change without another program.
    eager_inputs: such numbers are inputs from the start (optimizers' hyperparameters), not at their second value.
    otherwise: the handler of calls that the row refuses.
    """

    __slots__ = (
        "checked",
        "count",
        "eager_inputs",
        "exponent",
        "float_scalar",
        "func",
        "functional",
        "mutated",
        "fresh",
        "name",
        "number_check",
        "otherwise",
        "packed",
        "scalars",
        "signatures",
        "spec",
    )

    def __init__(self, func: OpOverload, functional: OpOverload, spec: OpSpec, otherwise: Callable[..., Any]) -> None:
        self.func = func
        self.otherwise = otherwise
        self.functional = functional
        self.spec = spec
        self.name = dotted_name(func)
        self.signatures: dict[Any, Signature] = {}
        self.count = 0
        self.packed = 0  # calls whose results were made by `wrap`
        arguments = func._schema.arguments
        positions = {index for index, argument in enumerate(arguments) if argument.name in spec.scalars}
        self.scalars: frozenset[int | str] = frozenset(positions | spec.scalars)
        convention = calling(func)
        self.mutated = convention.mutated
        # Random fills check their numbers at each call, and warn of them; dropout does so in Python before it comes here.
        self.checked = spec.random and bool(convention.mutated) and (bool(spec.scalars) or func._schema.name == "aten::random_")
        self.number_check = functional if any(argument.is_out for argument in arguments) else func
        self.fresh = convention.fresh
        # An exponent decides which program is best (x * x for 2): a constant as long as it stays the same, and always if whole.
        self.exponent = "exponent" in spec.scalars
        self.eager_inputs = _NO_CONSTANTS or (not self.exponent and (bool(convention.mutated) or spec.on_lists))
        self.float_scalar = FLOAT_INPUT if self.eager_inputs else FLOAT_FIXED

    def check_numbers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise what torch raises for the numbers of this call: a known signature says nothing about their values."""
        numbers = {name: _stand_in(value) for name, value in kwargs.items() if name not in _PLACEMENT}
        try:
            self.number_check(*map(_stand_in, args), **numbers)
        except NotImplementedError:  # a dtype that the CPU lacks
            return


def _stand_in(item: Any) -> Any:
    """An empty CPU tensor for a tensor, anything else as it is."""
    return torch.empty(0, dtype=item.dtype, device="cpu") if isinstance(item, torch.Tensor) else item


_REMEMBERED = 8192


_Found = TypeVar("_Found")


def remember(cache: dict[Any, Any], key: Any, result: _Found) -> _Found:
    """Keep the result for one set of arguments in a cache, which is cleared when it is full (an index that always changes).

    Returns the result that is kept: if two threads make one at once, both get the same object, since programs compare by identity.
    """
    if len(cache) >= _REMEMBERED:
        cache.clear()
    kept: _Found = cache.setdefault(key, result)
    return kept


def two_devices(first: Recorder, second: Recorder) -> DeviceMismatchError:
    """The error for operands on two xla devices."""
    return DeviceMismatchError(
        f"Expected all tensors to be on the same device, but found at least two devices, {first.device} and {second.device}! "
        "Move one of them first, with .to(device)"
    )


def recorder_among(args: Any) -> Recorder | None:
    """The recorder of the first xla tensor in `args`, looking into lists."""
    for arg in args:
        cls = type(arg)
        if cls is list or cls is tuple:
            recorder = recorder_among(arg)
            if recorder is not None:
                return recorder
        else:
            behind = tensor_behind(arg)
            if behind is not None:
                return behind._storage.value.recorder
    return None


class _Encoder:
    """Turns arguments into key parts and operand slots (the general case; `encode` has the common ones inline)."""

    __slots__ = ("call", "key", "recorder", "slots", "pending_graph")

    def __init__(self, call: Call, recorder: Recorder, pending_graph: PendingGraph, key: list[Any], slots: list[Any]) -> None:
        self.call = call
        self.recorder = recorder
        self.pending_graph = pending_graph
        self.key = key
        self.slots = slots

    def add(self, arg: Any, dynamic: bool) -> None:
        """Encode an argument that is no xla tensor: a number, a list, a constant, a tensor on the CPU."""
        kind = type(arg)
        key = self.key
        if kind is int:
            if dynamic and not self.call.exponent and -(1 << 63) <= arg < 1 << 63:
                self.number(arg, INT_INPUT, INT_FIXED)
            else:
                key.append(arg)
        elif kind is float:
            if dynamic:
                self.number(arg, FLOAT_INPUT, FLOAT_FIXED)
            else:
                # By its bits: 0.0 equals -0.0, and a NaN not even itself.
                key.append((float, struct.pack("d", arg)))
        elif kind is list or kind is tuple:
            # With its length: else the items of one list could be those of the next.
            key.append(("[", len(arg)))
            self.items(arg, dynamic)
        elif kind is complex:
            key.append((complex, struct.pack("dd", arg.real, arg.imag)))
        elif isinstance(arg, torch.Tensor):
            self.other_tensor(arg, dynamic)
        else:
            # With its type: True equals 1.
            key.append((kind, arg))

    def items(self, items: Any, dynamic: bool) -> None:
        """Encode the items of a list, tensors inline."""
        pending_graph, recorder = self.pending_graph, self.recorder
        add_key, add_slot = self.key.append, self.slots.append
        for item in items:
            kind = type(item)
            if kind is not XLATensor:
                if kind in PLAIN and not item.is_cpu:
                    item = getattr(storage_of(item), "_behind", item)
                if type(item) is not XLATensor:
                    self.add(item, dynamic)
                    continue
            value = item._storage.value
            if value.pending_graph is not pending_graph:
                if value.recorder is not recorder:
                    raise two_devices(recorder, value.recorder)
                pending_graph.adopt(value)
            spec = item._view
            if spec is None:
                add_key(value.aval)
                add_slot(value.slot)
            else:
                add_key(spec.shown)
                add_slot(pending_graph.read(value.slot, spec))

    def number(self, number: int | float, as_input: ScalarInput, as_fixed: ScalarInput) -> None:
        """Encode a number that may change from step to step."""
        scalar = as_input if self.call.eager_inputs else as_fixed
        self.key.append(scalar.kind)
        self.slots.append(self.pending_graph.add_scalar(scalar, number))

    def other_tensor(self, tensor: torch.Tensor, dynamic: bool) -> None:
        """Encode a tensor of a user's type, or one on the CPU: a 0-d one is a number with a dtype, and one with a single element where a
        number is wanted. A larger one is an error.
        """
        behind = tensor_behind(tensor)
        if behind is not None:
            self.items((behind,), False)
            return
        aval = aval_of((), tensor.dtype)
        kind = ScalarKind.FLOAT if tensor.dtype.is_floating_point else ScalarKind.INT
        number = self.pending_graph.host_number(tensor)
        if number is None:
            if type(tensor) not in PLAIN or tensor.device.type != "cpu" or (tensor.dim() and not (dynamic and tensor.numel() == 1)):
                raise mixed(tensor)
            # No packed host array carries complex numbers.
            if tensor.dtype.is_complex:
                value = upload(tensor, self.recorder)
                self.key.append(value.aval)
                self.slots.append(self.pending_graph.adopt(value))
                return
            followed = None if self.recorder.tape is None else self.recorder.tape.number_in(tensor)
            number = tensor.item() if followed is None else followed
            if kind is ScalarKind.INT and not -(1 << 63) <= number < 1 << 63:
                raise DeviceMismatchError(f"a 0-d CPU tensor of {number} does not fit a 64-bit integer: move it with .to('xla') first")
        self.key.append((ScalarInput, aval))
        self.slots.append(self.pending_graph.add_scalar(ScalarInput(kind, False, aval), number))


def encode(
    call: Call, recorder: Recorder, pending_graph: PendingGraph, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    """Key parts and operand slots of a call."""
    key: list[Any] = []
    slots: list[Any] = [None]
    encoder: _Encoder | None = None
    scalars = call.scalars
    for place, arg in enumerate(args):
        kind = type(arg)
        if kind is not XLATensor and (kind is Parameter or kind is Tensor) and not arg.is_cpu:
            arg = getattr(storage_of(arg), "_behind", arg)
            kind = type(arg)
        if kind is XLATensor:
            value = arg._storage.value
            if value.pending_graph is not pending_graph:
                if value.recorder is not recorder:
                    raise two_devices(recorder, value.recorder)
                pending_graph.adopt(value)
            spec = arg._view
            if spec is None:
                key.append(value.aval)
                slots.append(value.slot)
            else:
                key.append(spec.shown)
                slots.append(pending_graph.read(value.slot, spec))
        # As in `_Encoder.number`, by which encoding an operation with a number would take twice as long.
        elif kind is float and place in scalars:
            slot = len(pending_graph.entries)
            pending_graph.entries.append(call.float_scalar)
            pending_graph.refs.append(NOBODY)
            pending_graph.input_data[slot] = arg
            key.append(_FLOAT)
            slots.append(slot)
        elif arg is None or (kind is int and place not in scalars):
            key.append(arg)
        elif kind is list and _INT.issuperset(map(type, arg)) and place not in scalars:
            key.append(tuple(arg))  # sizes, dimensions
        else:
            if encoder is None:
                encoder = _Encoder(call, recorder, pending_graph, key, slots)
            encoder.add(arg, place in scalars)
    for name, arg in kwargs.items():
        if name in scalars and type(arg) is float:
            key.append((name, _FLOAT))
            slots.append(pending_graph.add_scalar(call.float_scalar, arg))
        elif name == "memory_format":
            key.append(arg)
        elif name not in _PLACEMENT:
            key.append(name)
            if encoder is None:
                encoder = _Encoder(call, recorder, pending_graph, key, slots)
            encoder.items((arg,), name in scalars)
    if call.spec.random:
        if call.checked:
            call.check_numbers(args, kwargs)
        given = kwargs.get("generator")
        # Drawn while recording: the order of reads does not change any operation's random numbers.
        slots.append(pending_graph.add_scalar(SEED, (recorder if given is None else generator_for(given, recorder)).draw()))
    return key, slots

"""Keeps programs by hash, and runs them again with other inputs, for frontends of compilers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from xla_core.api import devices
from xla_core.base import config
from xla_core.base.errors import DeviceMismatchError
from xla_core.base.metrics import Cause
from xla_core.engine.compile.cache import programs
from xla_core.engine.graph import rng
from xla_core.engine.graph.entries import ScalarInput, ScalarKind
from xla_core.engine.graph.graph import Graph, Inputs, inputs_of
from xla_core.engine.graph.node_text import numbers_of
from xla_core.engine.graph.pending_graph import Recorder, Value, buffer_value, computed_buffer
from xla_core.engine.graph.text import graph_hash
from xla_core.engine.runtime import client, donation, executor
from xla_core.engine.runtime.sync import compute
from xla_core.engine.tensor.interop import storage_key
from xla_core.engine.tensor.plain import unwrapped
from xla_core.engine.tensor.tensor import wrap
from xla_core.engine.tensor.values import value_of
from xla_core.features.export.stablehlo import PendingProgram, pending_program
from xla_core.legacy.xlac.common import Tensors, holders, plain_tensors
from xla_core.legacy.xlac.donation import _xla_get_enable_alias_with_buffer_donor_config

_SEED_ID = -127389  # the id of the random state among inputs; no tensor has it


@dataclass(frozen=True, slots=True)
class _Kept:
    recorder: Recorder
    graph: Graph


_kept: OrderedDict[bytes, _Kept] = OrderedDict()


def _xla_warm_up_cache(tensors: Tensors, devices: Sequence[str]) -> None:
    """Keep the program that computes `tensors` under its `_get_graph_hash`. `_run_cached_graph` compiles it; this runs nothing."""
    program = _cut(tensors)
    if program is not None:
        _kept[bytes.fromhex(graph_hash(program.graph))] = _Kept(program.recorder, program.graph)
        while len(_kept) > config.COMPILATION_CACHE_SIZE.get():
            _kept.popitem(last=False)


def _get_tensors_xla_device_data_node(output_tensors: Tensors, uncloned_tensors: Tensors = ()) -> tuple[list[int], list[torch.Tensor]]:
    """The inputs of the program that computes `output_tensors`, in the order in which `_run_cached_graph` takes them.

    For each input: the id of a tensor that shows it (`_xla_get_tensor_id`; tensors in `uncloned_tensors` take precedence), or
    `_get_seed_info_id()` for the random state; and a tensor with its present value. A number is a CPU tensor without dimensions.
    """
    program = _cut(output_tensors)
    if program is None:
        return [], []
    holder_of = holders(uncloned_tensors)
    numbers = numbers_of(program.graph, program.inputs)
    buffers = iter(program.inputs.buffers)
    ids: list[int] = []
    values: list[torch.Tensor] = []
    for slot, entry in _leaves(program.graph):
        if isinstance(entry, ScalarInput):
            seed = entry.kind is ScalarKind.SEED
            tensor = _seed_tensor(numbers[slot]) if seed else torch.tensor(numbers[slot], dtype=_DTYPES[entry.kind], device="cpu")
            ids.append(_SEED_ID if seed else id(tensor))
        else:
            buffer = next(buffers)
            holder = holder_of.get(id(buffer))
            tensor = wrap(buffer_value(program.recorder, entry, buffer, shared=True)) if holder is None else holder
            ids.append(storage_key(unwrapped(tensor)))
        values.append(tensor)
    return ids, values


_DTYPES = {ScalarKind.FLOAT: torch.float64, ScalarKind.INT: torch.int64}


def _run_cached_graph(hash: str | bytes, graph_inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a program that `_xla_warm_up_cache` kept, for other inputs of the same shapes and dtypes.

    Each seed among the inputs moves on by its index among the seeds, and the device's random state moves on too: random operations differ.
    Raises RuntimeError for a hash that is not kept, ValueError or TypeError for inputs that do not fit.
    """
    kept = _kept.get(hash if isinstance(hash, bytes) else bytes.fromhex(hash))
    if kept is None:
        raise RuntimeError("no program is kept under this hash: call _xla_warm_up_cache first; old ones go past XLA_COMPILATION_CACHE_SIZE")
    recorder, graph = kept.recorder, kept.graph
    leaves = list(_leaves(graph))
    if len(leaves) != len(graph_inputs):
        raise ValueError(f"the program takes {len(leaves)} inputs, got {len(graph_inputs)}")
    values = [_value(entry, tensor, recorder) for (_, entry), tensor in zip(leaves, graph_inputs, strict=True)]
    device_values = [value for value in values if isinstance(value, Value)]
    results: list[torch.Tensor] = []

    def keep(buffers: list[jax.Array]) -> None:
        results.extend(wrap(_result(recorder, graph, slot, buffer)) for slot, buffer in zip(graph.outs, buffers, strict=True))
        donation.settle()

    with recorder.lock:
        compute(device_values)
        if _xla_get_enable_alias_with_buffer_donor_config(str(recorder.device)):
            dead = tuple(index for index, value in enumerate(device_values) if donation.is_marked(value))
            graph = Graph(graph.entries, graph.outs, dead, graph.lines)
        executor.execute(recorder, graph, _inputs(graph, leaves, values, recorder), keep, Cause.DYNAMO_EXECUTE)
    return results


def _inputs(graph: Graph, leaves: list[tuple[int, Any]], values: list[Any], recorder: Recorder) -> Inputs:
    data: dict[int, Any] = {}
    seeds = 0
    for (slot, entry), value in zip(leaves, values, strict=True):
        if isinstance(value, Value):
            value = computed_buffer(value)
        elif entry.kind is ScalarKind.SEED:
            for _ in range(seeds):
                value = rng.moved_on(value)
            seeds += 1
            recorder.draw()
        data[slot] = value
    return inputs_of(list(graph.entries), data)


def _value(entry: Any, tensor: torch.Tensor, recorder: Recorder) -> Any:
    """The value of an input: on the device, or a number."""
    if isinstance(entry, ScalarInput):
        return int(tensor.item()) & rng.MASK if entry.kind is ScalarKind.SEED else tensor.item()
    value = value_of(unwrapped(tensor))
    if value.aval is not entry:
        raise ValueError(f"the program takes {entry} in this place, got {value.aval}")
    if value.recorder is not recorder:
        raise DeviceMismatchError(f"the program runs on {recorder.device}, an input is on {value.recorder.device}")
    return value


def _result(recorder: Recorder, graph: Graph, slot: int, buffer: jax.Array) -> Value:
    aval = graph.parts.avals[slot]
    if aval is None:
        raise RuntimeError(f"result {slot} of the program is no tensor")
    return buffer_value(recorder, aval, buffer)


def _cut(tensors: Tensors) -> PendingProgram | None:
    """The program of the pending ones among `tensors`; None if there are none."""
    pending = [tensor for tensor in plain_tensors(tensors) if value_of(tensor).buffer is None]
    return pending_program(pending) if pending else None


def _leaves(graph: Graph) -> Iterator[tuple[int, Any]]:
    return ((slot, graph.entries[slot]) for slot in graph.parts.inputs)


def _seed_tensor(seed: int) -> torch.Tensor:
    """A random state as a CPU tensor with the same 64 bits as a signed integer."""
    return torch.tensor(seed - (1 << 64) if seed >> 63 else seed, dtype=torch.int64, device="cpu")


def _get_seed_info_id() -> int:
    """The id that stands for the random state among the inputs of a program."""
    return _SEED_ID


def _get_base_seed_as_tensor(device: str) -> torch.Tensor:
    """The random state of a device (empty: the current one), a CPU tensor without dimensions."""
    recorder = client.recorder_at(devices.local_index(device)) if device else client.current_recorder()
    return _seed_tensor(recorder.seed)


def _xla_computation_cache_is_initialized() -> bool:
    """Whether there are compiled programs in memory."""
    return len(programs()) > 0


def _xla_get_num_cached_compilation_graph() -> int:
    """The number of programs in memory."""
    return len(programs())

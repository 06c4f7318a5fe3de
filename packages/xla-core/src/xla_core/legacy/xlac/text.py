"""Shows pending programs as text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xla_core.api import devices, plugins
from xla_core.engine.graph.entries import NamedLine, operation_at
from xla_core.engine.graph.node_text import element_type, node_text, numbers_of, shape_text
from xla_core.engine.graph.pending_graph import waits
from xla_core.engine.graph.text import graph_hash, graph_text
from xla_core.engine.placement.sharding import sharding_text
from xla_core.engine.runtime.resharding import any_sharded, requested_sharding
from xla_core.engine.runtime.source_location import user_lines
from xla_core.engine.tensor.interop import graph_of, storage_key
from xla_core.engine.tensor.live_buffers import live_tensors
from xla_core.engine.tensor.plain import unwrapped
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.engine.tensor.values import value_of
from xla_core.features.export import stablehlo
from xla_core.features.export.stablehlo import PendingProgram, pending_program
from xla_core.legacy.builder.running import is_placeholder
from xla_core.legacy.xlac.common import Tensors, holders, plain_tensors


def _get_xla_tensors_text(tensors: Tensors) -> str:
    """The program that computes `tensors`, in the notation of PyTorch/XLA's dumps (`engine/graph/node_text.py`). Runs nothing."""
    return _text(pending_program(plain_tensors(tensors)))


def _text(program: PendingProgram) -> str:
    device = devices.xla_real_device(program.recorder.device)
    return node_text(program.graph, device, numbers_of(program.graph, program.inputs), _shardings(program) if any_sharded() else None)


def _shardings(program: PendingProgram) -> dict[int, str]:
    """The shardings of inputs, by slot."""
    tensors = holders()
    slots = program.graph.parts.leaf_slots
    tensor_at = {slot: tensors.get(id(buffer)) for slot, buffer in zip(slots, program.inputs.buffers, strict=True)}
    return {slot: text for slot, tensor in tensor_at.items() if tensor is not None and (text := _sharding(tensor)) != "None"}


def _get_xla_tensors_hlo(tensors: Tensors) -> str:
    """The program that computes `tensors` as HLO text, before XLA's own passes, with shardings in SPMD mode. Runs nothing."""
    return stablehlo.get_hlo(plain_tensors(tensors))


def _get_xla_tensors_hlo_proto(tensors: Tensors) -> bytes:
    """The program that computes `tensors` as a serialized `HloModuleProto`."""
    lowered = stablehlo.lower_as_run(pending_program(plain_tensors(tensors)))
    return bytes(lowered.compiler_ir(dialect="hlo").as_serialized_hlo_module_proto())


def _set_xla_custom_op_name_prefix(tensor: torch.Tensor, prefix: str, max_call_stack_depth: int) -> bool:
    """Prefix the name of the pending operation that computes `tensor` with `prefix`, in HLO's metadata and so in profiles.

    max_call_stack_depth: how many of the user's lines to include, from this one outwards. False if no pending operation computes the
    tensor. Compiled programs keep their names.
    """
    xla_tensor = unwrapped(tensor)
    base, view = xla_tensor._storage.value, xla_tensor._view
    if view is None and (base.pending_graph is None or base.buffer is not None):
        return False
    with base.recorder.lock:
        pending_graph = base.recorder.pending_graph
        slot = pending_graph.adopt(base)
        slot = operation_at(pending_graph.entries, slot if view is None else pending_graph.read(slot, view))
        entry = pending_graph.entries[slot]
        if type(entry) is not tuple:
            return False
        lines = user_lines(max_call_stack_depth) or [entry[0].line or "unknown"]
        before = pending_graph.lines.get(slot)
        named = pending_graph.lines[slot] = NamedLine(lines[0])
        named.scopes = before.scopes if isinstance(before, NamedLine) else ()
        named.prefix, named.callers = prefix, tuple(lines[1:])
    return True


def _get_xla_tensors_dot(tensors: Tensors) -> str:
    """The program that computes `tensors` as a graph for Graphviz."""
    graph = graph_of(plain_tensors(tensors))
    rows = graph_text(graph, lines=False).splitlines()
    edges = [f"  n{operand} -> n{slot};" for slot, (_, *operands) in graph.recorded() for operand in dict.fromkeys(operands)]
    nodes = [f'  n{slot} [label="{_escaped(rows[slot])}"];' for slot in range(len(graph.entries))]
    return "\n".join(["digraph program {", *nodes, *edges, "}"])


def _get_xla_tensor_debug_info(tensor: torch.Tensor) -> str:
    """Describe `tensor`: id, device, shape, sharding, and its pending program or where its data is. Runs nothing."""
    xla_tensor = unwrapped(tensor)
    value = value_of(xla_tensor)
    device = devices.xla_real_device(value.recorder.device)
    lines = [
        "XLATensor {",
        f"TensorID: {storage_key(xla_tensor)}",
        f"Device: {device}",
        f"XLA Shape: {shape_text(value.aval)}",
        f"ShardingSpec: {_sharding(xla_tensor)}",
    ]
    if value.buffer is None:
        lines += [f"IR: {_text(pending_program([xla_tensor])) if waits(value) else None}", "XLAData: None"]
    elif is_placeholder(xla_tensor):
        lines += ["IR: None", "XLAData: placeholder"]
    else:
        lines += ["IR: None", "XLAData:", f"  Data Device: {device}", f"  Data Shape: {shape_text(value.aval)}"]
        lines += [f"  Data Handle: {_handle(xla_tensor)}"]
    return "\n".join([*lines, "}", ""])


def _sharding(tensor: XLATensor) -> str:
    asked = requested_sharding(tensor._storage)
    if asked is None:
        return "None"
    backend = plugins.sharding()
    return sharding_text(asked.named) if backend is None else backend.get_xla_sharding_spec(tensor)


def _handle(tensor: XLATensor) -> int:
    """The address of a tensor's data; in SPMD mode, of its first local shard."""
    buffer = value_of(tensor).buffer
    if buffer is None:
        raise RuntimeError("a tensor that is pending has no data: call torch_xla.sync() first")
    return int(buffer.addressable_data(0).unsafe_buffer_pointer())


def _get_tensors_handle(tensors: Tensors) -> list[int]:
    """For each tensor, the address of its data, which tensors may share. Raises RuntimeError for a pending tensor."""
    return [_handle(tensor) for tensor in plain_tensors(tensors)]


def _get_xla_tensor_shape_type(tensor: torch.Tensor) -> str:
    """XLA's name of the element type on the device: `f32`, `s64`, `bf16`."""
    return element_type(value_of(unwrapped(tensor)).aval.physical)


def _xla_tensors_report(nodes_threshold: int = 100, device: str = "") -> str:
    """Show the live tensors of a device (empty: of this process) whose pending programs have more nodes than `nodes_threshold`."""
    indices = [devices.local_index(device)] if device else None
    parts = []
    for tensor in _pending(indices):
        program = pending_program([tensor])
        size = sum(entry is not None for entry in program.graph.entries)
        if size > nodes_threshold:
            parts.append(f"{'=' * 80}\nTensor: id={storage_key(tensor)}, shape={shape_text(value_of(tensor).aval)}, nodes={size}\n")
            parts.append(_text(program))
    return "".join(parts)


def _pending(indexes: Sequence[int] | None) -> list[XLATensor]:
    tensors = [tensor for tensor in live_tensors() if indexes is None or tensor._storage.value.recorder.index in indexes]
    return [tensor for tensor in tensors if waits(tensor._storage.value)]


def _get_graph_hash(tensors: Tensors) -> bytes:
    """The hash of the program that computes `tensors`, the same in every process."""
    return bytes.fromhex(graph_hash(graph_of(plain_tensors(tensors))))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')

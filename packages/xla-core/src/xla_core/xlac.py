"""`torch_xla._XLAC`: the upstream names that client code calls, over our own runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xla_core import metrics
from xla_core._version import __version__
from xla_core.api import devices, eager, replicas
from xla_core.api.conversion import plain
from xla_core.api.hardware import global_runtime_device_attributes
from xla_core.api.library import optimization_barrier_
from xla_core.api.memory import MemoryInfo, get_memory_info
from xla_core.api.model import get_rng_state, set_rng_state, wait_device_ops
from xla_core.api.replication import addressable_device_count, global_ordinal
from xla_core.api.user_modules import xr
from xla_core.errors import UnsupportedOperationError
from xla_core.export import stablehlo
from xla_core.frontend.dispatch import capture_lines
from xla_core.frontend.interop import buffer_of, graph_of, materialize, storage_key
from xla_core.frontend.values import cpu_copies, value_of
from xla_core.ir.text import graph_hash, graph_text
from xla_core.runtime import client
from xla_core.runtime.executor import wait
from xla_core.runtime.recorder import Recorder
from xla_core.runtime.sync import compute, forbid_reads, retire, user_step

Tensors = Sequence[torch.Tensor]


def _xla_get_devices() -> list[str]:
    return [str(device) for device in devices.devices()]


def _xla_get_all_devices() -> list[str]:
    return [str(attributes["name"]) for attributes in xr(global_runtime_device_attributes)()]


def _xla_num_devices() -> int:
    return int(xr(addressable_device_count)())


def _xla_get_default_device() -> str:
    return str(devices.device())


def _xla_get_default_device_ordinal() -> int:
    return int(xr(global_ordinal)())


def _xla_set_default_device(device: str) -> str:
    previous = _xla_get_default_device()
    client.set_current_index(devices.local_index(device))
    return previous


def _xla_real_devices(names: Sequence[str] | None = None) -> list[str]:
    return devices.xla_real_devices(names)


def _xla_device_kind(device: str) -> str:
    return devices.xla_device_kind(device)


def _xla_set_replication_devices(names: Sequence[str]) -> None:
    replicas.join(names)


def _xla_get_replication_devices() -> list[str]:
    return list(replicas.joined())


def _xla_get_replication_devices_count() -> int:
    return len(replicas.joined())


def _xla_runtime_is_initialized() -> bool:
    return client.started()


def _xla_sync_multi(tensors: Tensors, devices: Sequence[str] = (), wait: bool = True, sync_xla_data: bool = True) -> None:
    materialize([plain(tensor) for tensor in tensors])
    if wait:
        wait_device_ops([tensor.device for tensor in tensors])


def _xla_sync_live_tensors(device: str = "", devices: Sequence[str] = (), wait: bool = True) -> None:
    recorder = _recorder(device)
    compute(
        [
            value
            for reference in list(recorder.pending_graph.refs)
            if (value := reference()) is not None and value.pending_graph is recorder.pending_graph
        ]
    )
    if wait:
        wait_device_ops([recorder.device])


def _xla_step_marker(device: str = "", devices: Sequence[str] = (), wait: bool = False, reset_scope: bool = True) -> None:
    user_step(_recorder(device), wait, "torch_xla._XLAC._xla_step_marker")


def _xla_wait_device_ops(devices: Sequence[str] = ()) -> None:
    wait_device_ops(devices)


def _xla_get_cpu_tensors(tensors: Tensors) -> list[torch.Tensor]:
    return cpu_copies([plain(tensor) for tensor in tensors])


def _xla_tensors_from_aten(tensors: Tensors, devices: Sequence[str], shardings: Sequence[Any] | None = None) -> list[torch.Tensor]:
    if len(devices) not in (1, len(tensors)):
        raise ValueError(f"{len(devices)} devices for {len(tensors)} tensors: give one for each, or one for all")
    if shardings and any(sharding is not None for sharding in shardings):
        raise UnsupportedOperationError(
            "_xla_tensors_from_aten takes no shardings: use torch_xla.distributed.spmd.mark_sharding on its results"
        )
    targets = list(devices) if len(devices) == len(tensors) else list(devices) * len(tensors)
    return [tensor.detach().to(target) for tensor, target in zip(tensors, targets, strict=True)]


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    return storage_key(plain(tensor))


def _xla_get_tensor_view_alias_id(tensor: torch.Tensor) -> int:
    return storage_key(plain(tensor))


def _xla_set_rng_seed(seed: int, device: str = "") -> None:
    set_rng_state(seed, device or None)


def _xla_get_rng_seed(device: str = "") -> int:
    return get_rng_state(device or None)


def _xla_memory_info(device: str = "") -> MemoryInfo:
    return get_memory_info(device or None)


def _xla_optimization_barrier_(tensors: Tensors) -> None:
    optimization_barrier_(list(tensors))


def _get_stablehlo(tensors: Tensors = (), device: str = "", devices: Sequence[str] = (), emit_bytecode: bool = False) -> str | bytes:
    return stablehlo.get_stablehlo_bytecode(tensors) if emit_bytecode else stablehlo.get_stablehlo(tensors)


def _run_stablehlo(bytecode: bytes, tensors: Tensors) -> list[torch.Tensor]:
    return stablehlo.run_stablehlo(bytecode, tensors)


def _get_xla_tensors_text(tensors: Tensors) -> str:
    return graph_text(graph_of(_plain(tensors)))


def _get_xla_tensors_hlo(tensors: Tensors) -> str:
    return stablehlo.get_hlo(_plain(tensors))


def _get_xla_tensors_dot(tensors: Tensors) -> str:
    graph = graph_of(_plain(tensors))
    rows = graph_text(graph, lines=False).splitlines()
    edges = [
        f"  n{operand} -> n{slot};"
        for slot, entry in enumerate(graph.entries)
        if type(entry) is tuple
        for operand in dict.fromkeys(entry[1:])
    ]
    nodes = [f'  n{slot} [label="{_escaped(rows[slot])}"];' for slot in range(len(graph.entries))]
    return "\n".join(["digraph program {", *nodes, *edges, "}"])


def _get_xla_tensor_debug_info(tensor: torch.Tensor) -> str:
    value = value_of(plain(tensor))
    state = "pending" if value.buffer is None else "computed"
    return f"{value.aval} on {value.recorder.device}, {state}, alias group {storage_key(plain(tensor))}\n{_get_xla_tensors_text([tensor])}"


def _get_xla_tensor_dimension_size(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.tensor(tensor.shape[dim], dtype=torch.int32, device=tensor.device)


def _get_graph_hash(tensors: Tensors) -> bytes:
    return bytes.fromhex(graph_hash(graph_of(_plain(tensors))))


def _clear_pending_irs(device: str = "") -> None:
    recorder = _recorder(device)
    with recorder.lock:
        retire(recorder)


def _replace_xla_tensor(tensor: torch.Tensor, other: torch.Tensor) -> None:
    tensor.data = other


def _unsafe_buffer_pointer(tensor: torch.Tensor) -> int:
    return int(buffer_of(plain(tensor)).unsafe_buffer_pointer())


def _xla_increment_counter(name: str, value: int) -> None:
    metrics.counter_add(name, value)


def _get_git_revs() -> dict[str, str]:
    return {"xla": __version__, "torch": str(torch.version.git_version)}


class _Execution:
    """Whether values may be read."""

    allowed = True


def _set_allow_execution(allow: bool) -> bool:
    previous, _Execution.allowed = _Execution.allowed, bool(allow)
    forbid_reads(None if allow else "a value was read while _XLAC._set_allow_execution(False) is in force")
    return previous


def _get_allow_execution() -> bool:
    return _Execution.allowed


class _IrDebug:
    """Whether each operation keeps the user's line."""

    on = False


def _set_ir_debug(on: bool) -> None:
    _IrDebug.on = bool(on)
    capture_lines(_IrDebug.on)


def _get_ir_debug() -> bool:
    return _IrDebug.on


def _set_use_eager_mode(on: bool) -> None:
    eager.eager_mode(on)


def _get_use_eager_mode() -> bool:
    return eager.is_eager_mode()


def _xla_get_runtime_devices() -> list[str]:
    return devices.xla_real_devices()


def _prepare_to_exit() -> None:
    if client.started():
        for recorder in client.client().recorders:
            wait(recorder)


def _recorder(device: str) -> Recorder:
    return client.recorder_at(devices.local_index(device)) if device else client.current_recorder()


def _plain(tensors: Tensors) -> list[torch.Tensor]:
    return [plain(tensor) for tensor in tensors]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')

"""Tensors by the extension module's names."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch

import torch_xla
import torch_xla._XLAC as xlac
import torch_xla.runtime as xr
import torch_xla.version
from xla_core.base import metrics
from xla_core.base.config import AUTO_SPMD, USE_SPMD, override


def waiting() -> int:
    """How many live tensors of the current device a read would have to compute, those of other tests included."""
    gc.collect()
    return xlac._check_device_tensor_need_materialization("").count(True)


def test_what_is_pending_needs_to_be_computed() -> None:
    torch_xla.sync()
    others = waiting()  # blanks that nobody has used: a sync leaves them
    done = torch.ones(3).to("xla")
    pending, blank = done + 1, torch.empty(3, device="xla")
    assert xlac._check_tensor_need_materialization([done, pending, pending[1:], blank]) == [False, True, True, True]
    assert waiting() == others + 2 and False in xlac._check_device_tensor_need_materialization("xla:0")
    torch_xla.sync()
    assert xlac._check_tensor_need_materialization([done, pending, blank]) == [False, False, True] and waiting() == others + 1
    assert blank.shape == blank.cpu().shape and waiting() == others


def test_what_was_lost_cannot_be_computed() -> None:
    torch_xla.sync()
    others = waiting()
    lost, blank = torch.ones(3).to("xla") + 1, torch.empty(2, device="xla")
    xlac._clear_pending_irs()
    assert xlac._check_tensor_need_materialization([lost, blank]) == [False, True] and waiting() == others + 1
    assert "IR: None\nXLAData: None" in xlac._get_xla_tensor_debug_info(lost)
    for use in (lost.cpu, lambda: xlac._get_xla_tensors_text([lost]), lambda: xlac._get_graph_hash([lost])):
        with pytest.raises(RuntimeError, match="_clear_pending_irs"):
            use()


def test_ids_of_what_a_tensor_shows_change_with_writes() -> None:
    tensor = torch.ones(3).to("xla")
    first = xlac._unique_id_for_ir_and_data(tensor)
    assert xlac._unique_id_for_ir_and_data(tensor) == xlac._unique_id_for_ir_and_data(tensor.detach()) == first
    number = xlac._xla_get_tensor_id(tensor)
    tensor.add_(1)
    assert xlac._unique_id_for_ir_and_data(tensor) != first and xlac._xla_get_tensor_id(tensor) == number


def test_handles_are_those_of_buffers() -> None:
    tensor, other = torch.ones(300).to("xla"), torch.ones(300).to("xla")
    handles = xlac._get_tensors_handle([tensor, tensor.detach(), other])
    assert handles[0] == handles[1] != handles[2]


def test_callbacks_come_when_the_data_is_there() -> None:
    ready = threading.Event()
    tensor = torch.ones(3).to("xla") * 2
    xlac._on_ready_callback(tensor, ready.set)
    assert ready.wait(60) and not xlac._check_tensor_need_materialization([tensor])[0]


def test_a_tensor_takes_the_place_of_another() -> None:
    runs = metrics.counter("ExecuteComputation")
    tensor, other = torch.ones(3).to("xla"), torch.arange(3.0).to("xla") + 1
    alias = tensor.detach()
    xlac._replace_xla_tensor(tensor, other)
    assert metrics.counter("ExecuteComputation") == runs
    assert tensor.tolist() == [1.0, 2.0, 3.0] and alias.tolist() == [1.0, 1.0, 1.0]


def test_dlpack_and_what_cannot_be_made() -> None:
    tensor = torch.arange(4.0).to("xla")
    back = xlac._from_dlpack(xlac._to_dlpack(tensor))
    assert back.device.type == "xla" and back.tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(TypeError, match="recorded"):
        xlac.IrValue()


def test_devices() -> None:
    tensor = torch.ones(1).to("xla")
    xlac._init_xla_lazy_backend()
    xlac._init_computation_client()
    assert xlac._xla_get_device_hw_type(tensor) == xr.device_type() == "CPU"
    assert xlac._xla_get_all_runtime_devices() == ["CPU:0"] and xlac._xla_num_runtime_devices() == xlac._xla_num_global_devices() == 1
    assert (xlac._xla_get_num_processes(), xlac._xla_get_process_index()) == (1, 0)
    assert xlac._xla_get_device_ordinal("xla:0") == 0 and xlac._xla_get_device_ordinal("CPU:3") == 3
    assert xlac._xla_get_all_device_attributes() == [xlac._xla_get_device_attributes("CPU:0")] == [{"name": "CPU:0"}]
    assert isinstance(xlac._xla_get_platform_version(), str) and xlac._xla_get_spmd_config_is_locked()
    assert xlac._xla_get_auto_sharding() is False and not USE_SPMD.get()
    with override(AUTO_SPMD, None):
        xlac._xla_set_auto_sharding()
        assert xlac._xla_get_auto_sharding() is True
    with pytest.raises(RuntimeError):
        xlac._xla_get_device_ordinal("nonsense")


@pytest.mark.parametrize("name", ["handle_special_scalars", "all_numbers_special_scalars", "enable_device_data_cache"])
def test_hints_are_kept_and_change_no_value(name: str) -> None:
    get: Callable[[], bool] = getattr(xlac, f"_get_xla_{name}")
    change: Callable[[bool], None] = getattr(xlac, f"_set_xla_{name}")
    before = get()
    try:
        change(True)
        assert get() and (torch.ones(2).to("xla") * 1 + 0).tolist() == [1.0, 1.0]
    finally:
        change(before)


def test_graph_names() -> None:
    seen: list[str | None] = []
    end = metrics.subscribe(lambda event: seen.append(event.name), metrics.CompileEvent)
    try:
        xlac._set_current_graph_name("forward")
        assert xlac._get_current_graph_name() == "forward"
        (torch.ones(3, 11, 37).to("xla") * 5).cpu()  # a program that no other test has compiled
        with torch_xla.compile(name="inner"):
            assert xlac._get_current_graph_name() == "inner"
    finally:
        xlac._set_current_graph_name("")
        end()
    assert seen == ["forward"] and xlac._get_current_graph_name() == ""


def test_preemption_needs_a_job() -> None:
    xlac._init_computation_client()
    with pytest.raises(RuntimeError, match="_ensure_xla_coordinator_initialized"):
        xlac._activate_preemption_sync_manager()
    with pytest.raises(RuntimeError, match="_activate_preemption_sync_manager"):
        xlac._sync_point_reached(0)
    with pytest.raises(RuntimeError, match="too late"):
        xlac._ensure_xla_coordinator_initialized(0, 1, "localhost")
    xlac._deactivate_preemption_sync_manager()


def test_a_job_of_one_heeds_notices(run: Callable[..., str]) -> None:
    printed = run("""
        import os, signal, socket
        import torch_xla._XLAC as xlac
        with socket.create_server(("localhost", 0)) as free:
            port = free.getsockname()[1]
        xlac._ensure_xla_coordinator_initialized(0, 1, "localhost", str(port))
        xlac._ensure_xla_coordinator_initialized(0, 1, "localhost", str(port))
        xlac._activate_preemption_sync_manager()
        print(xlac._sync_point_reached(0))
        os.kill(os.getpid(), signal.SIGTERM)
        step = 1
        while not xlac._sync_point_reached(step):
            step += 1
        print("reached")
        os._exit(0) if not print(end="", flush=True) else None
    """)
    assert printed.split() == ["False", "reached"]


def test_versions() -> None:
    assert torch_xla.version.__version__ == torch_xla.__version__
    assert torch_xla.version.__torch_gitrev__ == torch.version.git_version and torch_xla.version.__xla_gitrev__

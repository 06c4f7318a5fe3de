"""The extension module's names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torch_xla
import torch_xla._XLAC as xlac
import torch_xla.core.xla_model as xm
from xla_core.api import job
from xla_core.base import metrics
from xla_core.base.errors import GraphBreakError

NAMES = """
_xla_get_devices _xla_get_all_devices _xla_get_default_device _xla_set_default_device _xla_set_replication_devices _get_all_reduce_token
_set_all_reduce_token _xla_sync_multi _xla_step_marker _xla_wait_device_ops _xla_get_cpu_tensors _xla_tensors_from_aten _xla_get_tensor_id
_xla_get_tensor_view_alias_id _xla_set_rng_seed _xla_get_rng_seed _xla_memory_info _xla_optimization_barrier_ _get_stablehlo _xla_all_reduce
_xla_all_reduce_inplace _xla_all_gather _xla_all_gather_out _xla_all_gather_coalesced _xla_all_gather_coalesced_out _xla_all_to_all
_xla_collective_permute _xla_send _xla_recv _xla_reduce_scatter _xla_reduce_scatter_out _xla_reduce_scatter_coalesced
_xla_reduce_scatter_coalesced_out OpSharding XlaShardingSpec _xla_mark_sharding _mark_manual_sharding _xla_clear_sharding
_get_xla_sharding_type _spmd_full_to_shard_shape _spmd_shard_to_full_shape
""".split()


@pytest.fixture(autouse=True)
def nothing_pending() -> Iterator[None]:
    """Each test starts with an empty step."""
    torch_xla.sync()
    yield
    torch_xla.sync()


def data(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers).to("xla")


def counter(name: str) -> int:
    return metrics.counter(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_resolves(name: str) -> None:
    assert callable(getattr(xlac, name))


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="_xla_no_such_thing"):
        _ = xlac._xla_no_such_thing


def test_devices() -> None:
    assert xlac._xla_get_devices() == ["xla:0"] and xlac._xla_get_all_devices() == xlac._xla_real_devices(["xla:0"]) == ["CPU:0"]
    assert xlac._xla_num_devices() == 1 and xlac._xla_get_default_device_ordinal() == 0 and xlac._xla_runtime_is_initialized()
    assert xlac._xla_set_default_device("xla:0") == "xla:0"
    assert xlac._xla_device_kind("xla:0") == xm.xla_device_kind()


def test_default_device_is_text_that_torch_takes() -> None:
    text = xlac._xla_get_default_device()
    assert isinstance(text, str) and torch.device(text) == torch_xla.device()


def test_tensor_ids_are_those_of_storages() -> None:
    tensor = data(1.0, 2.0)
    alias = [
        xlac._xla_get_tensor_id(one) for one in (tensor, tensor.detach(), tensor[1:], tensor.view(2, 1), torch.nn.Parameter(tensor).data)
    ]
    assert len(set(alias)) == 1 and len({*alias, xlac._xla_get_tensor_id(tensor.clone()), xlac._xla_get_tensor_id(data(1.0, 2.0))}) == 3
    assert xlac._xla_get_tensor_view_alias_id(tensor) == xlac._xla_get_tensor_view_alias_id(tensor[:1])


def test_replication_devices() -> None:
    try:
        xlac._xla_set_replication_devices(["CPU:0"])
        assert xlac._xla_get_replication_devices() == ["CPU:0"] and xlac._xla_get_replication_devices_count() == 1
    finally:
        job._membership.devices = None


def test_sync_and_transfer() -> None:
    first, second = data(1.0) + 1, data(2.0) + 1
    marks, runs = counter("MarkStep"), counter("ExecuteComputation")
    xlac._xla_sync_multi([first, second], [], wait=True)
    assert (counter("MarkStep"), counter("ExecuteComputation")) == (marks, runs + 1)
    assert [tensor.tolist() for tensor in xlac._xla_get_cpu_tensors([first, second])] == [[2.0], [3.0]]
    assert counter("ExecuteComputation") == runs + 1
    third = first * 2
    xlac._xla_sync_live_tensors("xla:0")
    assert (counter("MarkStep"), counter("ExecuteComputation")) == (marks, runs + 2)
    xlac._xla_step_marker("xla:0", [], wait=True)
    assert counter("MarkStep") == marks + 1 and third.item() == 4.0
    xlac._xla_wait_device_ops([])
    moved = xlac._xla_tensors_from_aten([torch.ones(2), torch.zeros(1)], ["xla:0"])
    assert [tensor.tolist() for tensor in moved] == [[1.0, 1.0], [0.0]]
    with pytest.raises(ValueError, match="3 tensors"):
        xlac._xla_tensors_from_aten([torch.ones(1)] * 3, ["xla:0"] * 2)
    with pytest.raises(NotImplementedError, match="mark_sharding"):
        xlac._xla_tensors_from_aten([torch.ones(1)], ["xla:0"], ["sharding"])


def test_state_memory_and_barrier() -> None:
    xlac._xla_set_rng_seed(5, "xla:0")
    assert xlac._xla_get_rng_seed() == xlac._xla_get_rng_seed("xla:0") == xm.get_rng_state() == 5
    assert set(xlac._xla_memory_info("xla:0")) >= {"bytes_used", "bytes_limit"}
    tensor = data(1.0) + 1
    xlac._xla_optimization_barrier_([tensor])
    assert tensor.item() == 2.0


def test_programs_as_text_and_back() -> None:
    tensor = data(1.0, 2.0)
    pending = tensor * 3 + 1
    text = xlac._get_stablehlo([pending], "xla:0", [], False)
    bytecode = xlac._get_stablehlo([pending], "xla:0", [], True)
    assert isinstance(text, str) and "stablehlo.multiply" in text and isinstance(bytecode, bytes)
    assert xlac._run_stablehlo(bytecode, [tensor])[0].tolist() == [4.0, 7.0]
    assert "aten::mul(" in xlac._get_xla_tensors_text([pending])
    assert "HloModule" in xlac._get_xla_tensors_hlo([pending]) and "multiply" in xlac._get_xla_tensors_hlo([pending])
    dot = xlac._get_xla_tensors_dot([pending])
    assert dot.startswith("digraph") and dot.count("->") >= 3 and dot.endswith("}")
    assert "aten::mul(" in xlac._get_xla_tensor_debug_info(pending) and "IR: None" in xlac._get_xla_tensor_debug_info(tensor)
    with pytest.raises(RuntimeError, match="did not run"):
        xlac._run_stablehlo(b"no module", [tensor])


def test_graph_hash_is_that_of_the_program() -> None:
    def pending(shift: int) -> torch.Tensor:
        return data(1.0, 2.0)[shift:] * 3

    first = xlac._get_graph_hash([pending(1)])
    torch_xla.sync()
    again = xlac._get_graph_hash([pending(1)])
    torch_xla.sync()
    assert isinstance(first, bytes) and first == again != xlac._get_graph_hash([pending(0)])


def test_dropped_pending_work_is_an_error_and_no_garbage() -> None:
    kept, lost = data(1.0), data(2.0) + 1
    xlac._clear_pending_irs("xla:0")
    assert kept.item() == 1.0
    with pytest.raises(RuntimeError):
        lost.item()


def test_smaller_names() -> None:
    tensor = data(1.0, 2.0)
    assert xlac._get_xla_tensor_dimension_size(tensor, 0).item() == 2
    xlac._replace_xla_tensor(tensor, data(3.0))
    assert tensor.tolist() == [3.0]
    with pytest.raises(IndexError, match="Dimension out of range"):
        xlac._get_xla_tensor_dimension_size(tensor, 5)
    parameter = torch.nn.Parameter(data(1.0))
    for wrong in ((parameter, torch.ones(1)), (torch.ones(1), parameter)):
        with pytest.raises(RuntimeError, match="not an XLA tensor"):
            xlac._replace_xla_tensor(*wrong)
    xlac._replace_xla_tensor(parameter, data(4.0, 5.0))
    assert parameter.tolist() == [4.0, 5.0] and isinstance(parameter, torch.nn.Parameter)
    assert xlac._unsafe_buffer_pointer(tensor) > 0
    before = counter("ForATest")
    xlac._xla_increment_counter("ForATest", 3)
    assert counter("ForATest") == before + 3
    assert set(xlac._get_git_revs()) == {"xla", "torch"}
    assert xlac._xla_get_runtime_devices() == ["CPU:0"]
    xlac._prepare_to_exit()
    assert xlac._get_use_eager_mode() is False
    xlac._set_use_eager_mode(True)
    assert xlac._get_use_eager_mode() is True
    xlac._set_use_eager_mode(False)


def test_execution_can_be_forbidden() -> None:
    pending = data(1.0) + 1
    assert xlac._get_allow_execution() is True and xlac._set_allow_execution(False) is True
    try:
        with pytest.raises(GraphBreakError, match="_set_allow_execution"):
            pending.item()
    finally:
        assert xlac._set_allow_execution(True) is False
    assert pending.item() == 2.0


def test_lines_are_kept_while_debugging() -> None:
    xlac._set_ir_debug(True)
    try:
        assert xlac._get_ir_debug() is True
        pending = data(1.0) + 1
        assert "test_names.py" in xlac._get_xla_tensors_text([pending])
    finally:
        xlac._set_ir_debug(False)
    assert xlac._get_ir_debug() is False

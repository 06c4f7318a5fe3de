"""Ordinals, waiting, random state, conversion and the rest of the model-level API."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
from xla_core.base import metrics
from xla_core.engine.tensor.tensor import XLATensor


def executions() -> int:
    return metrics.counter("ExecuteComputation")


def data(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers).to("xla")


def test_reduction_names() -> None:
    names = (xm.REDUCE_SUM, xm.REDUCE_MUL, xm.REDUCE_AND, xm.REDUCE_OR, xm.REDUCE_MIN, xm.REDUCE_MAX)
    assert names == ("sum", "mul", "and", "or", "min", "max")


def test_alone() -> None:
    assert (xm.get_local_ordinal(), xm.xrt_world_size(), xm.xrt_world_size(8), xm.get_ordinal(), xm.get_ordinal(3)) == (0, 1, 1, 0, 0)
    assert xm.is_master_ordinal() is True and xm.is_master_ordinal(local=False) is True


def test_master_print(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    xm.master_print("a", 1)
    xm.master_print("b", fd=text, flush=True)
    monkeypatch.setattr("torch_xla.runtime.global_ordinal", lambda: 1)
    xm.master_print("not the global master")
    xm.master_print("local", local=True)
    assert capsys.readouterr().out == "a 1\nlocal\n" and text.getvalue() == "b\n"


def test_unlazy_runs_all_in_one_execution() -> None:
    first, second, other = data(1.0) + 1, data(2.0) * 2, data(3.0) * 3
    before = executions()
    assert xm.unlazy([first, second]) is None
    assert executions() == before + 1
    assert (first.item(), second.item()) == (2.0, 4.0) and executions() == before + 1
    assert other.item() == 9.0 and executions() == before + 2


def test_wait_device_ops_launches_nothing() -> None:
    pending = data(1.0, 2.0) * 2
    before = executions()
    for devices in ([], ["xla:0"], ["CPU:0"], [torch.device("xla:0")]):
        xm.wait_device_ops(devices)
    xm.wait_device_ops()
    assert executions() == before
    with pytest.raises(RuntimeError, match="CPU:7"):
        xm.wait_device_ops(["CPU:7"])
    assert pending.tolist() == [2.0, 4.0]


def test_arena_moves_a_nesting_to_the_device() -> None:
    shared = torch.ones(2)
    nesting = {"a": [shared, (shared, 3)], "b": {"c": torch.zeros(1)}}
    arena = xm.ToXlaTensorArena(lambda found: [tensor.to("xla") for tensor in found], lambda value: isinstance(value, torch.Tensor))
    moved = arena.transform(nesting)
    assert moved["a"][0] is moved["a"][1][0] and moved["a"][0].device.type == "xla" and moved["a"][1][1] == 3
    assert nesting["a"][0] is shared


def test_convert_to_cpu() -> None:
    parameter = torch.nn.Parameter(data(1.0, 2.0))
    tensor = data(3.0) + 1
    nesting = OrderedDict(
        parameter=parameter, tied=parameter, detached=parameter.detach(), rest=(tensor, [tensor, "text", 3]), view=parameter.detach()[1:]
    )
    before = executions()
    cpu = xm._maybe_convert_to_cpu(nesting)
    assert executions() == before + 1
    assert type(cpu) is OrderedDict and type(cpu["rest"]) is tuple and cpu["rest"][1][1:] == ["text", 3]
    assert cpu["parameter"] is cpu["tied"] and cpu["rest"][0] is cpu["rest"][1][0]
    assert cpu["parameter"].data_ptr() == cpu["detached"].data_ptr() and cpu["parameter"] is not cpu["detached"]
    assert [value.tolist() for value in (cpu["parameter"], cpu["rest"][0], cpu["view"])] == [[1.0, 2.0], [4.0], [2.0]]
    assert type(cpu["parameter"]) is torch.Tensor and nesting["rest"][0] is tensor


def test_without_conversion_everything_is_computed() -> None:
    tensor = data(1.0) + 1
    before = executions()
    nesting = {"x": [tensor]}
    assert xm._maybe_convert_to_cpu(nesting, convert=False) is nesting and nesting["x"][0] is tensor
    assert executions() == before + 1
    assert tensor.item() == 2.0 and executions() == before + 1


class Wrapper(torch.Tensor):
    """Stands for a tensor on the device, as a sharded tensor does."""

    global_tensor: XLATensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} on the wrapper: the tensor inside should be used")

    @staticmethod
    def around(tensor: torch.Tensor) -> Wrapper:
        wrapper: Wrapper = torch.Tensor._make_wrapper_subclass(Wrapper, tensor.shape, dtype=tensor.dtype, device=tensor.device)  # type: ignore[attr-defined]
        wrapper.global_tensor = tensor  # type: ignore[assignment]
        return wrapper


def test_wrappers_are_converted_too() -> None:
    cpu = xm._maybe_convert_to_cpu([Wrapper.around(data(1.0, 2.0))])
    assert type(cpu[0]) is torch.Tensor and cpu[0].tolist() == [1.0, 2.0]
    xm.unlazy([Wrapper.around(data(1.0) + 1)])


def test_send_cpu_data() -> None:
    source = torch.tensor([1.0, 2.0], requires_grad=True)
    already = data(9.0)
    batch = {"x": source, "nested": {"y": torch.ones(1, dtype=torch.int32), "n": 3}, "list": [source, already]}
    sent = xm.send_cpu_data_to_device(batch, "xla:0")
    assert sent["x"].requires_grad and sent["x"].is_leaf and sent["x"] is sent["list"][0]
    assert sent["x"].tolist() == [1.0, 2.0] and sent["nested"]["y"].dtype is torch.int32
    assert sent["list"][1] is already and sent["nested"]["n"] == 3
    assert batch["x"] is sent["x"] and batch["nested"]["y"] is sent["nested"]["y"], "dicts are updated in place"
    assert batch["list"][0] is source
    (alone,) = xm.send_cpu_data_to_device(torch.ones(1), torch_xla.device())
    assert alone.device == torch.device("xla:0")
    with torch.no_grad():
        source.fill_(7.0)
    assert sent["x"].tolist() == [1.0, 2.0]


class Spec:
    """As a ShardingSpec for tensors of two dimensions."""

    def __init__(self, minibatch: bool) -> None:
        self.minibatch = minibatch
        self.applied: list[tuple[int, ...]] = []

    def can_apply(self, tensor: torch.Tensor) -> bool:
        return tensor.dim() == 2

    def apply(self, tensor: torch.Tensor) -> None:
        assert tensor.device.type == "xla"
        self.applied.append(tuple(tensor.shape))


def test_sharding_where_ranks_match(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec(minibatch=False)
    xm.send_cpu_data_to_device([torch.ones(3, 2), torch.ones(3)], "xla", input_sharding=spec)
    assert spec.applied == [(3, 2)]
    monkeypatch.setattr("torch_xla.runtime.addressable_runtime_device_count", lambda: 2)
    xm.send_cpu_data_to_device([torch.ones(3, 2)], "xla", input_sharding=spec)
    with pytest.raises(RuntimeError, match="minibatch"):
        xm.send_cpu_data_to_device([torch.ones(3, 2)], "xla", input_sharding=Spec(minibatch=True))


def test_random_state() -> None:
    before = executions()
    assert xm.set_rng_state(12) is None
    assert xm.get_rng_state() == xm.get_rng_state("xla:0") == 12
    with xm.fork_rng():
        xm.set_rng_state(99, device="xla:0")
    assert xm.get_rng_state() == 12
    with pytest.raises(KeyError), xm.fork_rng(device="xla:0"):
        xm.set_rng_state(99)
        raise KeyError
    assert xm.get_rng_state() == 12
    with xm.fork_rng(enabled=False):
        xm.set_rng_state(2**64 - 1)
    assert xm.get_rng_state() == 2**64 - 1
    for bad in (-1, 2**64, 1.5, "1"):
        with pytest.raises(ValueError):
            xm.set_rng_state(bad)  # type: ignore[arg-type]
    assert executions() == before
    xm.set_rng_state(7)
    torch_xla.sync()
    assert xm.get_rng_state() == (7 * 7012063 + 1012031) % 2**64


def test_optimization_barrier_keeps_values_and_stays_in_the_program() -> None:
    tensor = data(1.0, 2.0) * 3
    view = tensor[1:]
    parameter = torch.nn.Parameter(data(4.0))
    plain = torch.ones(1)
    assert xm.optimization_barrier_([tensor, parameter, plain]) is None
    assert "optimization_barrier" in xm.get_stablehlo([tensor])
    assert (tensor.tolist(), view.tolist(), parameter.tolist()) == ([3.0, 6.0], [6.0], [4.0])
    assert parameter.requires_grad and parameter.is_leaf
    xm.optimization_barrier_([])
    view = data(1.0, 2.0)
    xm.optimization_barrier_([view[:1]])
    assert view.tolist() == [1.0, 2.0]


def test_view_sharing() -> None:
    tensor = data(1.0, 2.0)
    xm.check_view_sharing({"a": tensor, "b": [tensor, data(1.0)]})
    for other in (tensor[1:], tensor.detach(), tensor.view(2, 1)):
        with pytest.raises(RuntimeError, match=r"obj\[0\].*obj\[1\].*share memory"):
            xm.check_view_sharing([tensor, other])
    xm.check_view_sharing([tensor, tensor.clone()])


def test_operator_namespace() -> None:
    assert isinstance(xm.XLA_LIB, torch.library.Library)
    xm.XLA_LIB.define("for_a_test(Tensor x) -> Tensor")
    torch.library.impl(xm.XLA_LIB, "for_a_test", "CompositeImplicitAutograd")(lambda x: x + 1)
    assert torch.ops.xla.for_a_test(data(1.0)).item() == 2.0


def test_contexts_of_threads_are_the_same_object() -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(xm._get_device_context("xla:0"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(context is xm._get_device_context() for context in found) and len(found) == 4

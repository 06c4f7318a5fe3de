"""Programs as scripts of PyTorch/XLA read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torch_xla
import torch_xla._XLAC as xlac
from torch_xla.experimental.eager import eager_mode_context
from xla_core.base import metrics
from xla_core.engine.compile.build import register_wrapper
from xla_core.engine.compile.compiler import Executable
from xla_core.engine.graph.graph import Graph

NODE = re.compile(r"  %(\d+) = (\S.*?) (\w+::\w+)\((.*?)\), xla_shape=(.*)")


@pytest.fixture(autouse=True)
def nothing_pending() -> Iterator[None]:
    torch_xla.sync()
    yield
    torch_xla.sync()


def nodes(*tensors: torch.Tensor) -> dict[str, re.Match[str]]:
    """The nodes of the text of a program, by the operator's name."""
    lines = xlac._get_xla_tensors_text(tensors).splitlines()
    assert lines[0] == "IR {" and lines[-1] == "}"
    found = [NODE.fullmatch(line) for line in lines[1:-1]]
    assert all(found) and [int(match[1]) for match in found if match] == list(range(len(found)))
    return {match[3]: match for match in found if match}


def test_text_names_operators_shapes_and_places() -> None:
    tensor = torch.ones(29, 31).to("xla")  # a line is that of the first call with such shapes
    found = nodes((tensor * 2.5 + tensor).t().contiguous())
    assert found["xla::device_data"][2] == "f32[29,31]{1,0}" and "device=CPU:0" in found["xla::device_data"][5]
    assert "value=2.5" in found["prim::Constant"][5]
    mul, add = found["aten::mul"], found["aten::add"]
    assert mul[2] == "f32[29,31]{1,0}" and mul[4] == "%0, %1" and mul[5].startswith("f32[29,31]{1,0}, ")
    assert "test_text.py" in add[5].partition("location=")[2] and f"%{mul[1]}" in add[4]
    assert sum("ROOT=0" in match[5] for match in found.values()) == 1


def test_text_has_the_names_that_scripts_look_for() -> None:
    x, target = torch.rand(4, 4, device="xla"), torch.zeros(4, dtype=torch.int64).to("xla")
    found = nodes(
        torch.nn.functional.cross_entropy(x, target), x.softmax(0), torch.nn.functional.conv2d(x[None, None], x[None, None]), x @ x
    )
    wanted = {"aten::rand", "aten::softmax", "aten::log_softmax", "aten::nll_loss", "aten::convolution_overrideable", "aten::mm"}
    assert wanted <= set(found) and found["xla::device_data"][2] == "s64[4]{0}"


def test_text_of_views_writes_results_and_types() -> None:
    tensor = torch.arange(12, dtype=torch.int32).reshape(3, 4).to("xla")
    part = tensor[1:].t() + 1
    values, places = torch.topk(tensor, 2)
    low = tensor.to(torch.bfloat16)
    found = nodes(part, values, places, low)
    assert found["aten::topk"][2] == "(s32[3,2]{1,0}, s64[3,2]{1,0})" and "num_outputs=2, k=2" in found["aten::topk"][5]
    assert "ROOT=1, ROOT=2" in found["aten::topk"][5]
    assert found["aten::t" if "aten::t" in found else "aten::transpose"][2] == "s32[4,2]{1,0}"
    assert found["xla::cast"][2] == "bf16[3,4]{1,0}"
    tensor[0] = 7
    assert "aten::select_scatter" in nodes(tensor)
    assert xlac._get_xla_tensor_shape_type(low) == "bf16" and xlac._get_xla_tensor_shape_type(torch.ones(1).bool().to("xla")) == "pred"


def test_text_runs_nothing_and_shows_what_is_computed_as_data() -> None:
    tensor = torch.ones(2).to("xla")
    runs = metrics.counter("ExecuteComputation")
    pending = tensor + 1
    xlac._get_xla_tensors_text([pending]), xlac._get_xla_tensors_hlo([pending]), xlac._get_xla_tensor_debug_info(pending)
    assert metrics.counter("ExecuteComputation") == runs
    assert list(nodes(tensor)) == ["xla::device_data"]
    with pytest.raises(RuntimeError, match="not an XLA tensor"):
        xlac._get_xla_tensors_text([torch.ones(1)])


def test_text_of_blanks() -> None:
    blank = torch.empty(37, device="xla")
    assert nodes(blank)["aten::empty"][2] == "f32[37]{0}"
    assert "f32[37]" in xlac._get_xla_tensors_hlo([blank]) and "xla.empty" in xlac._get_xla_tensors_dot([blank])
    assert xlac._get_graph_hash([blank]) == xlac._get_graph_hash([torch.empty(37, device="xla")])
    assert "aten::empty" in xlac._get_xla_tensor_debug_info(blank) and xlac._check_tensor_need_materialization([blank]) == [True]


def test_hlo_shows_types_barriers_and_no_token() -> None:
    tensor = torch.ones(2, 2).to("xla")
    low = tensor.to(torch.bfloat16) @ tensor.to(torch.bfloat16)
    xlac._xla_optimization_barrier_([low])
    eighth = tensor.to(torch.float8_e4m3fn)
    text = xlac._get_xla_tensors_hlo([low, eighth])
    assert "opt-barrier" in text and "bf16[2,2]" in text and "f8e4m3fn[2,2]" in text
    assert re.search(r"->\(bf16\[2,2\]\{1,0\}, f8e4m3fn\[2,2\]\{1,0\}\)", text)
    proto = xlac._get_xla_tensors_hlo_proto([low, eighth])
    assert isinstance(proto, bytes) and b"opt-barrier" in proto


def op_names(*tensors: torch.Tensor) -> list[str]:
    """The names of operations in the metadata of a program's HLO."""
    return re.findall(r'op_name="jit\(program\)/([^"]*)"', xlac._get_xla_tensors_hlo(tensors))


def scaled(tensor: torch.Tensor) -> torch.Tensor:
    result = tensor * 2
    assert xlac._set_xla_custom_op_name_prefix(result, "encoder/", 2)
    return result


def test_prefixes_are_in_the_metadata_of_hlo_and_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_TIERED_COMPILATION", "0")  # the wrapped function is jax's
    tensor = torch.arange(12.0).reshape(3, 4).to("xla")
    assert op_names(tensor + 1) == [] and not xlac._set_xla_custom_op_name_prefix(tensor, "data/", 1)
    turned = scaled(tensor).t()
    values, places = (turned + 1).topk(2)
    assert xlac._set_xla_custom_op_name_prefix(turned, "turned/", 0) and xlac._set_xla_custom_op_name_prefix(places, "top/", 9)
    mul, transpose, *others = op_names(values, places)
    assert re.fullmatch(r"encoder/aten\.mul\.Tensor\[test_text\.py:\d+<test_text\.py:\d+\]/mul", mul)
    # One read serves all equal views, under the name of the first of them in the process.
    assert re.fullmatch(r"turned/xla\.read\.(t|transpose\.int|permute)\[.*\]\[\w+\.py:\d+\]/transpose", transpose)
    assert others[0].startswith("aten.add.Tensor[") and all(name.startswith("top/aten.topk[") for name in others[1:])
    assert b"encoder/aten.mul.Tensor[" in xlac._get_xla_tensors_hlo_proto([values])
    ran: list[str] = []

    def keep(graph: Graph, executable: Executable) -> Executable:
        def call(*arguments: Any) -> Any:
            ran.append(executable.lower(*arguments).compile().as_text())  # type: ignore[attr-defined]
            return executable(*arguments)

        return call

    end = register_wrapper(keep)
    try:
        expected = torch.topk(torch.arange(12.0).reshape(3, 4).t() * 2 + 1, 2)
        assert values.tolist() == expected.values.tolist() and places.tolist() == expected.indices.tolist()
    finally:
        end()
    assert "encoder/aten.mul.Tensor[" in ran[0] and "top/aten.topk[" in ran[0]


def test_metadata_is_shown_where_the_variable_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_HLO_DEBUG", "1")
    assert any(name.startswith("aten.cosh[") for name in op_names(torch.ones(7).to("xla").cosh()))


def test_prefixes_of_tensors_that_nothing_pending_computes() -> None:
    assert not xlac._set_xla_custom_op_name_prefix(torch.empty(3, device="xla"), "blank/", 1)
    with eager_mode_context(True):
        assert not xlac._set_xla_custom_op_name_prefix(torch.ones(3).to("xla") + 1, "done/", 1)
    with pytest.raises(RuntimeError, match="not an XLA tensor"):
        xlac._set_xla_custom_op_name_prefix(torch.ones(3), "cpu/", 1)


class Named(TorchDispatchMode):
    """Names each operation by its number, as profilers of 2.9's users do."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and xlac._set_xla_custom_op_name_prefix(result, f"op{self.count}/", 1):
            self.count += 1
        return result


def test_a_dispatch_mode_names_every_operation() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).to("xla")
    given = torch.ones(2, 4).to("xla")
    with Named() as mode, torch.autocast("xla", torch.bfloat16):
        result = model(given)
    named = {name.partition("/")[0] for name in op_names(result)}
    assert mode.count >= 3 and len(named) >= 3 and named <= {f"op{number}" for number in range(mode.count)}


def test_debug_info() -> None:
    tensor = torch.ones(2, 3).to("xla")
    pending = tensor + 1
    info = xlac._get_xla_tensor_debug_info(pending)
    for line in (
        f"TensorID: {xlac._xla_get_tensor_id(pending)}",
        "Device: CPU:0",
        "XLA Shape: f32[2,3]{1,0}",
        "XLAData: None",
        "aten::add(",
    ):
        assert line in info
    torch_xla.sync()
    info = xlac._get_xla_tensor_debug_info(pending)
    assert "IR: None" in info and "ShardingSpec: None" in info and f"Data Handle: {xlac._get_tensors_handle([pending])[0]}" in info
    with pytest.raises(RuntimeError, match="sync"):
        xlac._get_tensors_handle([pending + 1])


def test_report_of_large_programs() -> None:
    tensor = torch.ones(2).to("xla")
    for _ in range(20):
        tensor = tensor + 1
    assert xlac._xla_tensors_report() == ""
    report = xlac._xla_tensors_report(10, "xla:0")
    assert f"id={xlac._xla_get_tensor_id(tensor)}" in report and report.count("aten::add(") == 20

"""Programs as scripts of PyTorch/XLA read them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

import torch_xla
import torch_xla._XLAC as xlac
from xla_core import metrics

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
    with pytest.raises(TypeError):
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

"""Composites, notes and custom calls in exported programs: values against CPU torch, text against what JAX writes."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import jax
import pytest
import torch

import torch_xla
from torch_xla import stablehlo
from torch_xla.experimental.mark_pattern_utils import StableHLOCompositeBuilder
from torch_xla.experimental.stablehlo_custom_call import (
    extract_custom_call_outputs_shape_dtype,
    place_to_device,
    place_to_host,
    stablehlo_custom_call,
    to_device_backward,
    to_host_backward,
)
from torch_xla.experimental.xla_marker import (
    BoundaryMetadata,
    BoundaryMetadataSerializer,
    deserialize_composite_attr,
    mark_tensor,
    mark_tensor_meta,
    mark_tensor_xla,
    serialize_composite_attr,
)
from torch_xla.experimental.xla_mlir_debuginfo import (
    write_mlir_debuginfo,
    write_mlir_debuginfo_meta,
    write_mlir_debuginfo_tensor,
)
from xla_core.base.errors import UnsupportedOperationError


class Scaled(torch.nn.Module):
    """A composite with a weight from outside, two outputs, and another one nested in it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 0.5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        outer = StableHLOCompositeBuilder("test.outer", {"scale": 2, "kind": "a"})
        x, y = outer.mark_inputs(x.sin(), y)
        inner = StableHLOCompositeBuilder("test.inner")
        z = inner.mark_outputs(inner.mark_inputs(x) * self.weight)
        first, second = outer.mark_outputs(z + y, y.exp())
        return first.cos(), second


def test_composites_are_operations_of_the_module_with_their_decompositions() -> None:
    model, inputs = Scaled(), (torch.rand(2, 3), torch.rand(2, 3))
    exported = stablehlo.exported_program_to_stablehlo(torch.export.export(model, inputs))
    text = exported.get_stablehlo_text("forward")
    assert text.count('stablehlo.composite "test.outer"') == 1
    assert text.count('stablehlo.composite "test.inner"') == 1
    assert "scale = 2" in text
    assert 'kind = "a"' in text
    main = text.partition("func.func public @main")[2].partition("func.func private")[0]
    assert "sine" in main
    assert "exponential" not in main
    assert "multiply" not in main
    for got, expected in zip(exported(*inputs), model(*inputs), strict=True):
        torch.testing.assert_close(got.cpu(), expected.detach())


def test_marks_change_no_values_and_pass_gradients_on() -> None:
    x = torch.rand(3, requires_grad=True)
    on_device = x.detach().to("xla").requires_grad_()
    for tensor in (x, on_device):
        builder = StableHLOCompositeBuilder("test.one")
        result = write_mlir_debuginfo(builder.mark_outputs(builder.mark_inputs(tensor).sin()), "here")
        result.sum().backward()
    assert on_device.grad is not None
    torch.testing.assert_close(on_device.grad.cpu(), x.detach().cos())
    torch.testing.assert_close(result.detach().cpu(), x.detach().sin())


def test_marks_by_their_other_names() -> None:
    x = torch.rand(3)
    bound = BoundaryMetadata("test.named", 0, "1", False, {"scale": 2})
    text = json.dumps(bound, cls=BoundaryMetadataSerializer)
    marked = torch_xla._XLAC._xla_mark_tensor(mark_tensor_xla(x.to("xla"), "test.named", 0, "1", True).sin(), text)
    module = torch_xla.core.xla_model.get_stablehlo([marked])
    assert 'stablehlo.composite "test.named"' in module and "scale = 2" in module
    torch.testing.assert_close(marked.cpu(), x.sin())
    with pytest.raises(TypeError):
        torch_xla._XLAC._xla_mark_tensor(marked, "{}")
    for made in (mark_tensor_meta(x, "test.named", 0, "1", True), write_mlir_debuginfo_meta(x, "note")):
        assert (made.shape, made.dtype, made.device) == (x.shape, x.dtype, x.device)


def test_notes_are_in_the_locations_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_HLO_DEBUG", "1")
    noted = write_mlir_debuginfo_tensor(torch.ones(3).to("xla").sin(), "a note of ours")
    located = [line for line in torch_xla.core.xla_model.get_stablehlo([noted]).splitlines() if "a note of ours" in line]
    assert len(located) == 1 and located[0].startswith("#loc")


def test_attributes_are_numbers_and_texts() -> None:
    assert deserialize_composite_attr(serialize_composite_attr({"a": 1, "b": 0.5, "c": "d"})) == {"a": 1, "b": 0.5, "c": "d"}
    assert deserialize_composite_attr(serialize_composite_attr(None)) is None
    with pytest.raises(TypeError, match="numbers, texts or booleans"):
        StableHLOCompositeBuilder("test.bad", {"a": [1]})  # type: ignore[dict-item]


def test_inputs_are_marked_before_outputs() -> None:
    x = torch.ones(2, device="xla")
    first = mark_tensor(mark_tensor(x, "test.late", 0, "1", True).sin(), "test.late", 0, "1", False)
    second = mark_tensor(mark_tensor(first.cos(), "test.late", 1, "1", True) + x, "test.late", 1, "1", False)
    with pytest.raises(UnsupportedOperationError, match="mark the inputs first"):
        torch_xla.core.xla_model.get_stablehlo([first, second])


def test_custom_calls_are_in_the_text() -> None:
    x = torch.ones(2, 3, device="xla")
    first, second = stablehlo_custom_call((x,), "a_target", [(2,), (3, 1)], [torch.float32, torch.int32], True, "settings", 1)
    assert (tuple(first.shape), second.dtype) == ((2,), torch.int32)
    text = torch_xla.core.xla_model.get_stablehlo([first, second])
    assert "stablehlo.custom_call @a_target" in text
    assert 'backend_config = "settings"' in text
    assert "has_side_effect = true" in text
    [third] = torch_xla._XLAC._xla_custom_call([x], "a_target", [(4,)], [torch.float32], False, "", 1, {})
    assert tuple(third.shape) == (4,)
    [kernel] = torch_xla._XLAC._xla_tpu_custom_call([x], "payload", [(2, 3)], [torch.float32])
    assert "@tpu_custom_call" in torch_xla.core.xla_model.get_stablehlo([kernel])
    with pytest.raises(ValueError, match="2 shapes and 1 dtypes"):
        stablehlo_custom_call((x,), "a_target", [(2,), (3,)], [torch.float32])


def test_custom_calls_with_attributes() -> None:
    x = torch.ones(2, 3, device="xla")
    given: list[dict[str, str]] = [{"_xla_buffer_placement": "pinned_host"}, {"a": "b", "c": "d"}, {}]
    calls = [stablehlo_custom_call((x,), "attributed", [(2,)], [torch.float32], frontend_attributes=one) for one in given]
    first, second, third = [
        line for line in torch_xla.core.xla_model.get_stablehlo(calls).splitlines() if "custom_call @attributed" in line
    ]
    assert 'mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}' in first
    assert 'mhlo.frontend_attributes = {a = "b", c = "d"}' in second and "frontend_attributes" not in third


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
def doubled(out: int, inputs: Any) -> None:
    """A target of custom calls: doubles four numbers."""
    numbers = (ctypes.c_float * 4).from_address(inputs[0])
    (ctypes.c_float * 4).from_address(out)[:] = [2 * number for number in numbers]


def test_registered_targets_run() -> None:
    torch_xla._XLAC._xla_register_custom_call_target("test_marks_doubled", jax.ffi.pycapsule(doubled), "CPU")
    x = torch.arange(4.0).to("xla")
    with torch.no_grad():
        [result] = torch_xla._XLAC._xla_custom_call([x + 1], "test_marks_doubled", [(4,)], [torch.float32], False, "", 1, {})
    assert (result + x).tolist() == [2.0, 5.0, 8.0, 11.0]
    with pytest.raises(RuntimeError, match="no_such_target"):
        stablehlo_custom_call((x,), "no_such_target", [(4,)], [torch.float32]).cpu()


def test_shapes_of_a_node() -> None:
    program = torch.export.export(Scaled(), (torch.rand(2, 3), torch.rand(2, 3)))
    node = next(node for node in program.graph.nodes if node.op == "call_function")
    assert extract_custom_call_outputs_shape_dtype(node) == ([(2, 3)], [torch.float32])


def test_memories() -> None:
    x = torch.ones(2, device="xla", requires_grad=True)
    placed = place_to_host(x * 2)
    placed.sum().backward()
    assert x.grad is not None
    back = place_to_device(placed.detach().requires_grad_())
    back.square().sum().backward()
    assert (placed.tolist(), x.grad.tolist(), back.tolist()) == ([2.0, 2.0], [2.0, 2.0], [2.0, 2.0])
    for backward, name in ((to_host_backward, "place_to_device"), (to_device_backward, "place_to_host")):
        gradient = backward(None, x.detach() * 3)
        assert f"xla::{name}(" in torch_xla._XLAC._get_xla_tensors_text([gradient]) and gradient.tolist() == [3.0, 3.0]

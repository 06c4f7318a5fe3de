"""Wrappers of tensors on eight devices."""

from __future__ import annotations

from typing import Any

BOTH = "{devices=[4,2]0,1,2,3,4,5,6,7}"


def test_what_a_wrapper_is(report: Any, refused: Any) -> None:
    found = report("wrapper.what_a_wrapper_is")
    assert found["type"] == [True, "XLAShardedTensor", True] and found["as its tensor"] == [True, "xla:0"]
    assert found["sharding"] == [BOTH, "TILED", [4, 2], [0, 1]]
    assert found["of none"] == ["", None] and found["given"] == [[8], [0]]
    assert "XLAShardedTensor" in found["repr"] and "[0., 1., 2., 3., 4., 5., 6., 7.]" in found["repr"]
    assert found["gathered"] == [False, "cpu", 0.0, 10.0, list(map(float, range(8)))]
    assert all(refused(why, "RuntimeError", "cpu", ".to('xla')") for why in found["cpu"]) and len(found["cpu"]) == 2


def test_wrapping(report: Any) -> None:
    found = report("wrapper.wrapping")
    assert found["wrap"] == [True, True] and found["unwrap"] == [True, True, 3]
    assert found["wrap_if"] == [True, True] and found["unchanged"] == [True] * 5 and found["parameter"] == [True]
    assert found["cleared"] == ["XLATensor", True]


def test_operations_give_wrapped_results(report: Any, refused: Any) -> None:
    found = report("wrapper.operations")
    assert found["wrapped"] == [True] * 18
    assert found["wrong"] == [] and found["several"] == [True, True]
    assert all(refused(why, "RuntimeError", "Input tensor is not an XLA tensor: torch.FloatTensor") for why in found["cpu"])
    assert len(found["cpu"]) == 2


def test_in_place_operations_give_the_same_object(report: Any) -> None:
    found = report("wrapper.in_place")
    assert found["same"] == [True] * 4 and found["plain target"] == [False]
    assert found["errors"] == [0.0] * 4 and found["text"] == BOTH
    assert found["shapes"] == [[True, True, 0.0, 0.0]] * 4


def test_data_can_be_replaced(report: Any) -> None:
    found = report("wrapper.data")
    assert found["of a wrapper"] == [[2, 3], "torch.int64", [[1] * 3] * 2, [2, 3]]
    assert found["of a plain"] == 0
    assert found["Module.to"] == ["torch.bfloat16", 0.0, True]


def test_gradients_flow_through(report: Any) -> None:
    found = report("wrapper.gradients")
    error, of_gradient, of_wrapper = found["parameter"]
    assert error < 1e-5 and not of_gradient and of_wrapper
    error, has_history = found["pending"]
    assert error < 1e-5 and has_history
    *kind, of_gradient, of_values, text = found["parameter of a wrapper"]
    assert kind == [True] * 3 and of_gradient < 1e-4 and of_values < 1e-4 and text == BOTH
    assert found["no_grad"] == [True, False]


def test_copies(report: Any) -> None:
    found = report("wrapper.copies")
    assert found["deepcopy"] == [True, BOTH, [4, 2], [0, 1]] and found["independent"] == [0.0] * 3
    assert found["clone"] == [True, BOTH]
    assert found["pickle"] == [False, "xla:0", 0.0], "a pickle is that of the tensor inside"
    assert found["loaded"] == ["xla:0", 0.0, True, 0.0]

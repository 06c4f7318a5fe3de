"""Dimensions that a mesh does not divide evenly are divided all the same: each device holds its share, rounded up."""

from __future__ import annotations

from typing import Any


def test_devices_hold_their_share(report: Any) -> None:
    found = report("uneven.memory")
    assert found["line"] == [2 * 7 * 4] * 8 and found["both"] == [3 * 4 * 4] * 8
    assert found["written"] == [[3 * 4 * 4] * 8, 0.0, "{devices=[4,2]0,1,2,3,4,5,6,7}"]
    assert found["fewer than devices"] == [[4] * 8, [1]]
    assert found["cleared"] == [0.0, [10, 7]]


def test_training_is_one_program_with_its_state_divided(report: Any) -> None:
    found = report("uneven.training")
    assert found["compiled"] == [1, 0, 0, 0] and found["error"] < 1e-5
    assert found["held"] == [3 * 4 * 4] * 3


def test_any_shape_and_spec(report: Any) -> None:
    assert report("uneven.properties")["right"]


def test_programs_over_padded_buffers(report: Any) -> None:
    found = report("uneven.programs")
    assert found["error"] == 0.0 and found["held"] == [2 * 7 * 4] * 8
    parameters = [line for line in found["text"].splitlines() if " parameter(" in line and "sharding=" in line]
    assert len(parameters) == 2 and all("f32[16,7]" in line and "sharding={devices=[8,1]" in line for line in parameters)

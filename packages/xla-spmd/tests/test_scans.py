"""Loops over layers and data that are sharded over a mesh of eight devices."""

from __future__ import annotations

from typing import Any


def test_shardings_of_weights_survive_in_a_stack_of_layers(report: Any) -> None:
    found = report("scan.sharded_layers")
    assert max(found["errors"]) < 1e-5 and found["updated"] < 1e-5
    assert (found["gathers"], found["whole"], found["kept"]) == (0, 0, True)
    assert found["parts"] > 0 and found["part of a gradient"] == [16, 8]


def test_layers_may_mark_what_they_compute(report: Any) -> None:
    found = report("scan.marks_inside")
    assert len(found) == 6 and max(found.values()) < 1e-5, found


def test_sharded_tensors_are_arguments_like_others(report: Any) -> None:
    assert max(report("scan.sharded_tensors")["errors"]) < 1e-4

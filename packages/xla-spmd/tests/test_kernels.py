"""Attention kernels of the core over a mesh of eight devices, beside stock torch."""

from __future__ import annotations

from typing import Any


def test_each_device_attends_for_its_batches_and_heads(report: Any) -> None:
    found = report("kernels.attention")
    assert max(found["flash"] + found["splash"] + found["bias"]) < 1e-4
    assert "names axis 'rows', which the mesh has not" in found["wrong axis"]
    assert not found["gathers"]


def test_values_do_not_depend_on_the_mesh(report: Any) -> None:
    found = report("kernels.other_meshes")
    assert max(max(found[name]) for name in ("order", "length", "short")) < 1e-4
    assert found["uneven"] < 1e-4 and found["wrapped"] < 1e-4

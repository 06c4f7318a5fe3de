"""Manual regions on eight devices."""

from __future__ import annotations

from typing import Any

ROW = "{devices=[1,8]3,1,2,0,7,6,5,4}"


def test_worked_example(report: Any) -> None:
    found = report("manual.worked_example")
    assert found["shard"] == [[8, 1], "{manual}", "MANUAL", "{manual}", True, True, True]
    assert found["marked"] == ROW and found["whole"] == [[8, 8], ROW, 0.0]
    assert found["copies"] == [[8, 8], "{manual}", 0.0, "{replicated}", 0.0]


def test_a_region_calculates_as_the_cpu_does(report: Any) -> None:
    found = report("manual.calculation")
    assert found["shape"] == [5, 2] and not found["pending after sync"]
    assert max(found["errors"]) < 1e-5
    assert found["wrapped"] == [True, False, False] and found["text"] == "{devices=[2,4]3,1,2,0,7,6,5,4}"


def test_mark_manual_sharding(report: Any, refused: Any) -> None:
    found = report("manual.mark_manual")
    assert found["text"] == ["{manual}", "{manual}", "MANUAL"] and found["type"] == [True]
    assert found["errors"] == [0.0, 0.0] and found["wrapper"] == [True, "{manual}", True, 0.0]
    assert all(refused(why, "RuntimeError", "(8, 8)", "stored data") for why in found["stored"]) and len(found["stored"]) == 2
    assert refused(found["cpu"], "RuntimeError", "Input tensor is not an XLA tensor")


def test_refusals(report: Any, refused: Any) -> None:
    found = report("manual.refusals")
    assert refused(found["rank"], "AssertionError", "(0,)", "(8, 8)")
    assert refused(found["mesh size"], "AssertionError", "4 devices", "8")
    assert refused(found["cpu"], "RuntimeError", "Input tensor is not an XLA tensor")
    assert refused(found["otherwise"], "RuntimeError", ROW, "clear_sharding")
    assert refused(found["order"], "RuntimeError", "[4,2]0,1,2,3,4,5,6,7", "order")
    for name in ("of a shard", "marking a shard", "clearing a shard", "shards of a shard"):
        assert refused(found[name], "RuntimeError", "(8, 1)", "disable_manual_sharding")
    assert refused(found["no shard"], "RuntimeError", "(8, 8)", "enable_manual_sharding")
    assert refused(found["full shape"], "RuntimeError", "(8, 16)", "(8, 2)", "(8, 1)")
    assert refused(found["full rank"], "AssertionError", "(8, 8, 1)")
    assert refused(found["no shard, cpu"], "RuntimeError", "Input tensor is not an XLA tensor")
    assert refused(found["no mesh"], "RuntimeError", "set_global_mesh")
    assert found["end"] == 0, "what was refused changed nothing"

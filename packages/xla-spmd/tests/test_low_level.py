"""The names of `torch_xla._XLAC` about shardings, on eight devices."""

from __future__ import annotations

from typing import Any

BOTH = "{devices=[4,2]0,1,2,3,4,5,6,7}"
FIRST = "{devices=[2,4]3,1,2,0,7,6,5,4}"


def test_telling_and_asking(report: Any, refused: Any) -> None:
    found = report("low_level.telling")
    assert found["none"] == ["", None, None]
    assert found["specs"] == [BOTH, "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", ""]
    assert found["type"] == [3, 5, True] and found["cleared"] == "" and found["manual"] == ["{manual}", 4]
    assert refused(found["rank"], "ValueError", BOTH, "2 dimensions")
    assert refused(found["size"], "AssertionError", "{devices=[2,2]0,1,2,3}", "4 devices", "8")
    assert found["XlaShardingSpec"] == [[[0, 1], [2, 3], [4, 5], [6, 7]], 3, False]


def test_the_backend_keeps_its_contract(report: Any) -> None:
    assert report("low_level.contract") == {"checked": True}


def test_programs_say_how_they_are_sharded(report: Any) -> None:
    found = report("low_level.texts")
    hlo = found["hlo"].splitlines()
    parameters = [line for line in hlo if " parameter(" in line]
    assert sum("sharding={devices=[2,4]" in line for line in parameters) == 1
    assert sum("sharding={replicated}" in line for line in parameters) == 1
    assert any('custom_call_target="Sharding"' in line and "bf16[8,4]" in line and "devices=[2,1,4]" in line for line in hlo)
    root = next(line for line in hlo if "ROOT" in line)
    assert "bf16[8,4]" in root and "sharding={{devices=[2,1,4]" in root and any("opt-barrier" in line for line in hlo)
    assert f"device=CPU:0, sharding={FIRST}" in found["ir"] and "aten::mm(" in found["ir"] and "xla::custom_sharding(" in found["ir"]
    assert "ShardingSpec: {devices=[2,1,4]3,1" in found["pending"] and "aten::mm(" in found["pending"]
    assert f"ShardingSpec: {FIRST}" in found["computed"] and "Data Handle: " in found["computed"]
    assert found["handles"] == 1 and found["values"] == 0


def test_programs_run_and_are_asked_for(report: Any, refused: Any) -> None:
    found = report("low_level.runs")
    assert found["names"] == [True, True] and found["need"] == [False, True, True]
    assert found["module"] == [0] and found["cached"] == [0] and found["pointer"] is True
    assert found["indices"] == [0, 0, 0] and found["written"] == [0, BOTH]
    assert found["taken"][0] == 0 and refused(found["taken"][1:], "RuntimeError", "marked for donation")


def test_shards(report: Any, refused: Any) -> None:
    found = report("low_level.shards")
    assert found["last"] == [[[38.0, 39.0], [0.0, 0.0], [0.0, 0.0]], "CPU:7", 0, [[9, 10, 1], [2, 4, 1]]]
    assert found["error"] == 0
    assert refused(found["refused"]["fewer"], "RuntimeError", "7 shards", "CPU:0")
    assert refused(found["refused"]["unpaired"], "RuntimeError", "7 shards")
    assert refused(found["refused"]["device"], "RuntimeError", "CPU:9")
    assert refused(found["refused"]["shape"], "RuntimeError", "(3, 2)", "(2, 2)")


def test_a_tensor_from_shards(report: Any, refused: Any) -> None:
    found = report("low_level.from_shards")
    assert found["errors"] == [[True, True]] * 4
    assert found["texts"] == [[BOTH, "{replicated}"], False, False, 0.0]
    assert refused(found["refused"]["none"], "RuntimeError", "0 shards", "8 devices")
    assert refused(found["refused"]["fewer"], "RuntimeError", "7 shards", "8 devices")
    assert refused(found["refused"]["shape"], "RuntimeError", "(20, 4)", "(5, 2)", "(3, 2)")
    assert refused(found["refused"]["rank"], "ValueError", BOTH)


def test_regions(report: Any, refused: Any) -> None:
    found = report("low_level.regions")
    assert found["shard"] == [[4, 2], "{manual}", False, False]
    assert found["whole"] == [FIRST, 0.0, 0.0]
    assert refused(found["unmarked"], "RuntimeError", "mark_sharding")
    assert refused(found["of a shard"], "RuntimeError", "disable_manual_sharding")
    assert refused(found["order"], "RuntimeError", BOTH, "order")
    assert refused(found["no shard"], "RuntimeError", "(8, 8)")
    assert refused(found["shape"], "RuntimeError", "(64, 8)", "(32, 2)", "(4, 2)")

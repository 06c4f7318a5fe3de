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

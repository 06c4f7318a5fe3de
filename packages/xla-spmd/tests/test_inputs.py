"""The sharding of inputs: `ShardingSpec`."""

from __future__ import annotations

from typing import Any

ROWS = "{devices=[2,1,4]3,1,2,0,7,6,5,4 last_tile_dim_replicate}"
BOTH = "{devices=[2,4]3,1,2,0,7,6,5,4}"


def test_specs(report: Any, refused: Any) -> None:
    found = report("input.specs")
    groups = [[3, 1, 2, 0], [7, 6, 5, 4]]
    assert found["values"] == [groups, [[0], [1]], groups, 5] and found["as the mesh"]
    assert found["fields"] == [True, ["x", None], False, True]
    assert found["can_apply"] == [True, False] and found["xla_spec"] == [ROWS, None]
    assert found["apply"] == [None, None, ROWS, 0.0, False], "the same twice"
    assert refused(found["cpu"], "AssertionError", "xla:0", "cpu")
    assert refused(found["rank"], "AssertionError", "(8,)")
    assert refused(found["mesh size"], "AssertionError", "4 devices", "8")
    assert refused(found["a text"], "ValueError", "'x'")
    assert refused(found["otherwise"], "RuntimeError", ROWS, "clear_sharding")


def test_uploads(report: Any, refused: Any) -> None:
    found = report("input.uploads")
    assert found["even"] == [BOTH, True, True, [4, 2], False] and found["dtype"] == [BOTH, True, True, [4, 2], False]
    assert found["uneven"] == [BOTH, True, True, [3, 0], False], "the first device is the last of its row"
    assert found["minibatch"] == [ROWS, True, True, [4, 8], False], "one process has the whole batch"
    assert found["rank"] == ["", True, True, [8], False] and found["scalar"] == ["", True, True, [], False]
    assert refused(found["mesh size"], "AssertionError", "4 devices")
    assert refused(found["on xla"], "RuntimeError", "xla:0", "mark_sharding")

"""What each of eight devices holds of a tensor, and giving it to them."""

from __future__ import annotations

from typing import Any


def test_worked_example(report: Any) -> None:
    found = report("local_shards.worked_example")
    rows = [[4.0 * row + column for column in range(4)] for row in range(10)]
    starts = [0, 0, 3, 3, 6, 6, 9, 9]
    assert found["unpadded"] == [rows[start : start + 3] for start in starts]
    assert found["data"] == [(rows + [[0.0] * 4] * 2)[start : start + 3] for start in starts]
    assert found["indices"] == [[[start, min(start + 3, 10), 1], [0, 4, 1]] for start in starts]
    assert found["replica_id"] == [0, 1] * 4
    assert found["shard_device"] == [f"CPU:{number}" for number in range(8)] and set(found["device"]) == {"cpu"}


def test_unpadded_data_can_be_set(report: Any) -> None:
    assert report("local_shards.unpadded_data") == {"data": [[7.0] * 4, [0.0] * 4, [0.0] * 4], "whole": [0.0]}


def test_loading_gives_back_the_shards(report: Any) -> None:
    found = report("local_shards.loading")
    assert len(found) == 6 and all(one == [None, True, True, True] for one in found.values()), found


def test_dtypes(report: Any) -> None:
    found = report("local_shards.dtypes")
    assert len(found) == 7 and all(all(one) for one in found.values()), found


def test_small_tensors(report: Any) -> None:
    found = report("local_shards.small_tensors")
    assert found["scalar"] == [[3.0, "...", device] for device in range(8)]
    assert found["empty"] == [[[0, 2], [[0, 0, 1], [0, 2, 1]]], [[0, 2], [[0, 0, 1], [2, 4, 1]]]]


def test_what_is_written_to(report: Any) -> None:
    found = report("local_shards.what_is_written_to")
    assert found["parameter"] == [list(map(float, range(8))), True, "{devices=[4,2]0,1,2,3,4,5,6,7}"]
    assert found["view"] == [2.0] * 4 + [0.0] * 4
    assert found["snapshot"] == 7.0, "shards are copies"
    assert found["pending"] == [[[float(number)]] for number in range(1, 9)]


def test_refusals(report: Any, refused: Any) -> None:
    found = report("local_shards.refusals")
    assert refused(found["unsharded"], "RuntimeError", "(8, 8)", "mark_sharding")
    assert refused(found["unsharded, loading"], "RuntimeError", "(8, 8)")
    assert refused(found["replicated"], "RuntimeError", "replicated", "copy_")
    assert refused(found["too few"], "RuntimeError", "3 shards", "8 devices")
    assert refused(found["too many"], "RuntimeError", "9 shards")
    assert refused(found["without padding"], "RuntimeError", "(3, 4)", "(1, 4)", "(10, 4)")
    assert found["same"] == 0, "nothing was loaded"
    assert found["replicated shards"] == [["...", device, [8, 8]] for device in range(8)]

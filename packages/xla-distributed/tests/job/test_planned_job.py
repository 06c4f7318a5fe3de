"""A process that plans for a target stands for the first of its replicas: nothing runs, nobody is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_replicas_of_a_target_are_planned_in_one_process(start: Callable[..., Any]) -> None:
    job = start("planned", 4)
    code, out, err = job.end()
    assert code == 0, f"{out}\n{err}"
    report = job.report(0)
    assert report["called"] == [0] and report["place"] == [0, 4, 0] and report["exchanged"] == 4
    assert report["gathered"] == [8, 3] and report["group"] == [4, 0]
    assert report["scattered"] == 4, "FSDP shards a parameter over all four"
    assert report["reduces"] and all(groups == "{{0,1,2,3}}" for groups in report["reduces"])
    assert report["apart"] == [3], "a group of two replicas"
    assert report["objects"] == [[{"name": "replica"}] * 4, True, [20, 8], [[1, 2]] * 4, ["mine"], ["here"] * 4]
    assert report["after"] == [1, 0] and report["without_spawn"] == [4, 0, 4] and report["after_all"] == 1
    assert "5 replicas on planned-cpu: it has devices for 1 to 4" in report["too_many"]

"""Replicas that mix up programs which all have run before: an error on each, nothing wrong computed, no end by a signal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Job = Any  # of conftest.py
Start = Callable[..., Job]


@pytest.mark.parametrize(
    ("size", "seed", "count"),
    [(3, 2, 45), *(pytest.param(size, seed, 400, marks=pytest.mark.long) for size in (2, 3, 4) for seed in (3, 4))],
)
def test_random_schedules_that_differ_at_one_place(start: Start, size: int, seed: int, count: int) -> None:
    reports = start("mixed_up", size, "schedules", seed, count).reports()
    differing = 0
    for number, of_all in enumerate(zip(*reports, strict=True)):
        for rank, report in enumerate(of_all):
            assert report["at"] == report["differ"], (number, rank, report)
            if report["differ"] is not None:
                assert report["error"] == "CollectiveMismatchError" and f"replica {rank} runs" in report["text"], (number, report)
        differing += of_all[0]["differ"] is not None
    assert differing == count - len(range(0, count, 3))


def test_every_way_to_a_collective_and_tags(start: Start) -> None:
    for report in start("mixed_up", 2, "ways").reports():
        for name, found in report["ways"].items():
            assert found.get("error") == "CollectiveMismatchError", (name, found)
            assert "replica 0 runs" in found["text"] and "replica 1 runs" in found["text"], (name, found)
            if name != "ddp":  # whose gradients still wait for the collective that was refused
                assert found["after"] == {"result": found["known"][3]}, "both go on behind an error that both have had"
        sums = {"captured": [7.0, 7.0], "compiled": [7.0, 7.0], "torch.distributed": [5.0, 5.0]}
        assert {name: report["ways"][name]["known"][0] for name in sums} == sums
        same, reduce, meet, after = report["tags"]
        assert same == {"result": ["0\n", "1\n"]} and after == {"result": 1.0}
        for found, tags in ((reduce, ("mean of score", "mean of loss")), (meet, ("begin", "end"))):
            assert found["error"] == "CollectiveMismatchError"
            assert all(f"rendezvous {tag!r} of replica {rank}" in found["text"] for rank, tag in enumerate(tags)), found


def test_groups_of_which_not_all_are_members(start: Start) -> None:
    reports = start("mixed_up", 3, "groups").reports()
    for report in reports[:2]:
        found = report["mixed"]
        assert found["error"] == "CollectiveMismatchError" and "among [0, 1]" in found["text"]
        assert "sum" in found["text"] and "max" in found["text"]
        assert found["known"] == [[5.0, 5.0]] * 4 + [[3.0, 3.0]] * 4 and found["after"] == {"result": [5.0, 5.0]}
        assert "replica 0 runs among [0, 1]" in report["crossing"]["text"] and "replica 1 runs\n" in report["crossing"]["text"]
    for report in reports:
        assert report["crossing"]["error"] == "CollectiveMismatchError", reports


def test_replicas_that_confirm_nothing_find_out_where_they_meet(start: Start) -> None:
    job = start("mixed_up", 2, "unconfirmed", "meet")
    code, _, err = job.end()
    reports = [job.report(rank) for rank in range(2)]
    assert not all(report["right"] for report in reports), "the test mixes nothing up"
    for where in ("rendezvous", "new program"):
        for report in reports:
            found = report[where]
            assert found["error"] == "CollectiveMismatchError", found
            assert "run 3 of replica 0 was all_reduce(" in found["text"] and "run 3 of replica 1 was all_reduce(" in found["text"]
            assert "'sum'" in found["text"] and "'max'" in found["text"] and found["text"].count("mixed_up.py:") == 2
    # All errors were caught, and yet the job does not end as if all were well.
    assert code == 1 and "SIG" not in err
    assert "CollectiveMismatchError: replicas have run different programs" in err and "run 3: all_reduce(" in err


def test_replicas_that_confirm_nothing_and_do_not_meet(start: Start) -> None:
    code, _, err = start("mixed_up", 2, "unconfirmed", "watch").end()
    assert code == 1 and "SIG" not in err
    assert "CollectiveMismatchError: replicas disagree" in err and "'sum'" in err and "'max'" in err and "mixed_up.py:" in err

"""No silent hang: replicas that die, raise, disagree or do not arrive end the job with an error that says who and what."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

Job = Any  # of conftest.py
Start = Callable[..., Job]

SOON = 20.0  # seconds in which a job must notice; most take a second or two


def running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + SOON
    while any(map(running, pids)):
        assert time.monotonic() < deadline, f"still running: {[pid for pid in pids if running(pid)]}"
        time.sleep(0.05)


def pids(job: Job) -> list[int]:
    """The process of each replica of the program's case `endless`, once all take part."""
    return [int(job.until(f"there-{rank}")) for rank in range(job.size)]


def test_other_shapes_are_an_error_on_both_sides(start: Start) -> None:
    reports = start("failures", 2, "other_shapes").reports()
    for report in reports:
        assert report["error"] == "CollectiveMismatchError"
        for side in ("replica 0 runs\n  1. all_reduce(", "->f32[2],", "replica 1 runs\n  1. all_reduce(", "->f32[3],"):
            assert side in report["text"]
        assert report["text"].count("failures.py:") == 2, "the user's lines"


@pytest.mark.parametrize("case", ["late_new", "other_order"])
def test_what_is_known_on_a_replica_beside_what_is_new_or_known_on_the_other(start: Start, case: str) -> None:
    for report in start("failures", 2, case).reports():
        assert report["error"] == "CollectiveMismatchError", report
        assert "f32[2]" in report["text"] and "f32[3]" in report["text"] and "failures.py:" in report["text"]


def test_an_uncaught_mismatch_ends_no_replica_by_a_signal(start: Start) -> None:
    code, _, err = start("failures", 2, "other_order_uncaught").end()
    assert code == 1 and "SIG" not in err
    assert "CollectiveMismatchError: replicas disagree on their collectives" in err
    assert "f32[2]" in err and "f32[3]" in err and "failures.py:" in err


def test_replicas_that_wait_at_different_places(start: Start) -> None:
    for report in start("failures", 2, "one_more").reports():
        assert report["error"] == "CollectiveMismatchError"
        assert "rendezvous 'end' of replica 1" in report["text"] and "f32[5]" in report["text"]
        assert report["seconds"] < SOON


def test_a_replica_that_waits_where_another_is_still_in_a_collective(start: Start) -> None:
    job = start("failures", 2, "one_more_known")
    code, _, err = job.end()
    assert code != 0 and job.seconds < 60
    assert "CollectiveMismatchError: replicas disagree on" in err and "rendezvous 'end' of replica 1" in err
    assert "replica 0 runs\n  1. all_reduce(" in err and "failures.py:" in err


@pytest.mark.parametrize("case", ["raises", "raises_in_do_on_ordinals"])
def test_the_traceback_of_the_replica_that_failed_comes_first(start: Start, case: str) -> None:
    job = start("failures", 2, case)
    code, _, err = job.end()
    assert code != 0
    assert "Process 1 terminated with the following error" in err and "the culprit" in err
    assert "Process 0 terminated" not in err


@pytest.mark.parametrize(
    "case", ["absent", *(pytest.param(case, marks=pytest.mark.long) for case in ("absent_at_first", "absent_at_rendezvous"))]
)
def test_who_does_not_arrive_is_named_when_the_time_is_over(start: Start, case: str) -> None:
    report: dict[str, Any] = start("failures", 2, case, XLA_COLLECTIVE_TIMEOUT_SECONDS="4").reports()[0]
    assert report["error"] in ("ExecutionError", "ReplicaTimeoutError")
    assert "ordinals [1]" in report["text"] and "did not arrive" in report["text"]
    assert "rendezvous 'lunch'" in report["text"] or "all_reduce" in report["text"]
    assert 3.9 < report["seconds"] < 4 + SOON


@pytest.mark.parametrize("rank", [0, *(pytest.param(rank, marks=pytest.mark.long) for rank in (1, 2))])
def test_a_killed_replica_ends_the_job(start: Start, rank: int) -> None:
    job = start("failures", 3, "endless")
    found = pids(job)
    os.kill(found[rank], signal.SIGKILL)
    killed = time.monotonic()
    code, _, err = job.end()
    assert code != 0 and time.monotonic() - killed < SOON
    assert f"process {rank} terminated with signal SIGKILL" in err
    wait_until_gone(found)


def test_ctrl_c_leaves_no_process_behind(start: Start) -> None:
    job = start("failures", 2, "endless")
    found = pids(job)
    job.process.send_signal(signal.SIGINT)
    code, _, _ = job.end()
    assert code != 0
    wait_until_gone(found)


def test_replicas_end_with_a_killed_launcher(start: Start) -> None:
    job = start("failures", 2, "endless")
    found = pids(job)
    job.process.kill()
    wait_until_gone(found)

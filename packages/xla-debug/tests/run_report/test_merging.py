"""One run report of several processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from xla_debug.run_report.merging import merge
from xla_debug.run_report.schema import Finding, HotLine, Problem, Replica, RunReport

Make = Callable[..., Replica]
MakeReport = Callable[..., RunReport]


def finding(text: str = "read in 100 of 100 steps", line: str = "train.py:41", cost_ms: float = 10.0) -> Finding:
    return Finding(Problem.READS, line, text, "read it less often", cost_ms)


def test_replicas_come_by_ordinal(replica: Make, run_report: MakeReport) -> None:
    ones = [run_report(replica(ordinal), command=[f"{ordinal}.py"], started_s=100.0 - ordinal, seconds=5.0) for ordinal in (2, 0, 1)]
    merged = merge(ones)
    assert [one.ordinal for one in merged.replicas] == [0, 1, 2]
    assert merged.command == ["0.py"] and merged.environment == ones[1].environment
    assert merged.started_s == 98.0 and merged.seconds == 7.0, "from the first start to the last end"
    assert merge([merged]) == merged


def test_a_process_takes_the_place_of_an_earlier_one(replica: Make, run_report: MakeReport) -> None:
    old, new = replica(1, pid=7, started_s=10.0), replica(1, pid=8, started_s=20.0)
    assert [one.pid for one in merge([run_report(new), run_report(replica(0)), run_report(old)]).replicas] == [1000, 8]


@pytest.mark.parametrize(("codes", "code"), [((0, 0), 0), ((0, 3), 3), ((1, None), None), ((0, None), None)])
def test_exit_codes(codes: tuple[int | None, ...], code: int | None, replica: Make, run_report: MakeReport) -> None:
    assert merge([run_report(replica(ordinal), exit_code=each) for ordinal, each in enumerate(codes)]).exit_code == code


def test_nothing_to_merge() -> None:
    with pytest.raises(ValueError, match="at least one"):
        merge([])


def test_what_all_share_is_said_once(replica: Make, run_report: MakeReport) -> None:
    texts = ["read in 100 of 100 steps, 1.5 s", "read in 99 of 100 steps, 2.5 s"]
    ones = [replica(ordinal, findings=[finding(text, cost_ms=10.0 + ordinal)]) for ordinal, text in enumerate(texts)]
    (found,) = merge(list(map(run_report, ones))).findings
    assert found == Finding(Problem.READS, "train.py:41", texts[1], "read it less often", 11.0, None), "as where it costs most"


def test_what_some_have_names_them(replica: Make, run_report: MakeReport) -> None:
    other = finding("another value was read", cost_ms=50.0)
    ones = [replica(0, findings=[finding()]), replica(1, findings=[finding(), other]), replica(2, findings=[finding(line="train.py:9")])]
    found = merge(list(map(run_report, ones))).findings
    assert [(one.text, one.line, one.replica) for one in found] == [
        ("another value was read", "train.py:41", 1),
        ("read in 100 of 100 steps", "train.py:41", 0),
        ("read in 100 of 100 steps", "train.py:41", 1),
        ("read in 100 of 100 steps", "train.py:9", 2),
    ], "the costliest first"


def test_the_findings_of_one_process_stay(replica: Make, run_report: MakeReport) -> None:
    assert merge([run_report(replica(3, findings=[finding()]))]).findings == [finding()]


SLOW_LOADER = {"tracing": 5.0, "look-up": 1.0, "loader": 4.0}
"""Ten milliseconds per step as the others, all of it own work, where theirs is six."""


def test_a_straggler_is_named_with_its_line(replica: Make, run_report: MakeReport) -> None:
    lines = [HotLine("model.py:3", "tracing", 450.0), HotLine("data.py:9", "loader", 300.0), HotLine("data.py:7", "loader", 90.0)]
    ones = [replica(0), replica(1), replica(2, per_step=SLOW_LOADER, hot_lines=lines), replica(3)]
    (found,) = merge(list(map(run_report, ones))).findings
    assert (found.problem, found.replica, found.line) == (Problem.STRAGGLER, 2, "data.py:9")
    assert found.cost_ms == pytest.approx(400.0), "four milliseconds in each of 100 steps"
    assert (
        "10.0 ms per step, the others 6.0 ms" in found.text and "loader alone takes 4.0 ms more" in found.text and "loader" in found.advice
    )


def test_of_two_the_slower_is_the_straggler(replica: Make, run_report: MakeReport) -> None:
    (found,) = merge([run_report(replica(0, per_step=SLOW_LOADER)), run_report(replica(1))]).findings
    assert (found.problem, found.replica, found.line) == (Problem.STRAGGLER, 0, None)


@pytest.mark.parametrize(
    ("per_step", "steps"),
    [
        ({"tracing": 5.0, "look-up": 1.0, "waiting": 40.0}, 100),  # waits for another, or for the device
        ({"tracing": 6.1, "look-up": 1.0, "waiting": 2.9}, 100),  # 18 % more work
        (SLOW_LOADER, 19),
        ({}, 0),
    ],
)
def test_no_stragglers(per_step: dict[str, float], steps: int, replica: Make, run_report: MakeReport) -> None:
    assert merge([run_report(replica(0)), run_report(replica(1)), run_report(replica(2, steps=steps, per_step=per_step))]).findings == []


def test_stragglers_are_not_found_twice(replica: Make, run_report: MakeReport) -> None:
    merged = merge([run_report(replica(0, per_step=SLOW_LOADER)), run_report(replica(1))])
    assert merge([merged]) == merged
    assert merge([merged, run_report(replica(2))]).findings[0].replica == 0
    assert dataclasses.replace(merged, findings=[]) != merged

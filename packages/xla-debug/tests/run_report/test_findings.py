"""What makes a finding."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from xla_debug.run_report.findings import find_problems
from xla_debug.run_report.schema import Problem, Replica, Sync

LINE = "/work/app/train.py:41"


@pytest.mark.parametrize(("compile_ms", "wait_ms", "found"), [(0.0, 0.4, False), (0.0, 0.6, True), (990.0, 0.6, True), (990.0, 0.4, False)])
def test_waits_are_held_against_the_time_without_compilations(
    replica: Callable[..., Replica], compile_ms: float, wait_ms: float, found: bool
) -> None:
    steps = 100
    run = replica(
        0,
        per_step={"tracing": 9.0, "waiting": 1.0, "compile": compile_ms},
        syncs=[Sync("/work/app/train.py:30", "step", "user torch_xla.sync", steps, steps, 12.0)],
    )
    problems = find_problems(run, {LINE: (steps, wait_ms * steps)})
    assert [(each.problem, each.line) for each in problems] == ([(Problem.READS, LINE)] if found else [])

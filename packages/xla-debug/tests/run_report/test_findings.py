"""What makes a finding."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from xla_debug.run_report.findings import find_problems
from xla_debug.run_report.schema import Bottleneck, Change, Compile, HotLine, Problem, ProgramDifference, Replica, Sync

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


@pytest.mark.parametrize(("phase", "problem"), [("python", Problem.PYTHON), ("loader", Problem.LOADER)])
@pytest.mark.parametrize(
    ("ms", "bound", "found"), [(3.0, "python-bound", True), (2.0, "tracing-bound", False), (3.0, "device-bound", False)]
)
def test_the_user_s_own_code_is_a_finding_if_the_device_waits_for_it(
    replica: Callable[..., Replica], phase: str, problem: Problem, ms: float, bound: str, found: bool
) -> None:
    hot = [HotLine("/work/app/train.py:9", "tracing", 500.0), HotLine(LINE, phase, 200.0), HotLine("/work/app/train.py:50", phase, 100.0)]
    run = replica(0, per_step={"tracing": 9.0, "compile": 50.0, phase: ms}, verdict=Bottleneck(bound), hot_lines=hot)
    problems = find_problems(run, {})
    assert [(each.problem, each.line, each.cost_ms) for each in problems] == ([(problem, LINE, 300.0)] if found else [])
    assert all("25% of the time without compilations, 3.0 ms a step" in each.text for each in problems)


def test_a_handful_of_samples_is_no_finding(replica: Callable[..., Replica]) -> None:
    assert find_problems(replica(0, steps=10, per_step={"python": 10.0}), {}) == []


@pytest.mark.parametrize(
    ("line", "steps", "advice"),
    [
        (LINE, (0, 0, 0, 0), "docs/recompiling.md"),
        ("/lib/transformers/generation/utils.py:395", (0, 0, 0, 0), "cache_implementation='static'"),
        (LINE, (0, 0, 0), None),
        (LINE, (0, 0, 1, 1), None),
        (None, (0, 0, 0, 0), None),
    ],
    ids=["a loop", "generate", "fewer", "two steps", "no line"],
)
def test_a_line_that_asks_for_one_program_after_the_other_without_steps(
    replica: Callable[..., Replica], line: str | None, steps: tuple[int, ...], advice: str | None
) -> None:
    changed = ProgramDifference(Change.FIRST, "no program like this one was known")
    compiles = [Compile(0.0, 500.0, step, line, "value_read", None, str(at), 90, 3, 1, changed) for at, step in enumerate(steps)]
    problems = find_problems(replica(0, compiles=compiles), {})
    assert [(each.problem, each.line, each.cost_ms) for each in problems] == ([(Problem.PROGRAMS, line, 2000.0)] if advice else [])
    assert all(str(advice) in each.advice for each in problems)

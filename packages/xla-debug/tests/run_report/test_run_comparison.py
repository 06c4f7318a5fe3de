"""`xla-debug diff` and `compare`: what got slower, by how much, and what else is different."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from xla_debug.cli import group
from xla_debug.run_report import files
from xla_debug.run_report.run_comparison import compare_runs, summarize
from xla_debug.run_report.schema import Environment, Fallback, Finding, Problem, Replica, RunReport, Step

Make = Callable[..., Replica]
MakeReport = Callable[..., RunReport]
SLOWER = {"tracing": 5.0, "look-up": 1.0, "waiting": 4.0, "fallback": 5.0}
"""Milliseconds per step: 15, where the usual replica has 10."""


def finding(line: str, problem: Problem = Problem.READS) -> Finding:
    return Finding(problem, line, "a value was read", "read it less often")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


@pytest.fixture
def two(replica: Make, run_report: MakeReport, tmp_path: Path) -> tuple[Path, Path]:
    """The files of two runs: the second takes half as long again, in an operator on the CPU."""
    before = run_report(replica(findings=[finding("/work/train.py:3")]))
    fallbacks = [Fallback("aten::median", "/work/model.py:1", 100, 0, 500.0)]
    new = finding("/work/model.py:1", Problem.FALLBACK)
    after = run_report(
        replica(per_step=SLOWER, fallbacks=fallbacks, findings=[new]),
        environment=Environment("3.12.1", "Linux-6.1-x86_64", {"torch": "2.14.0", "jax": "0.10.2"}, {}),
    )
    files.write(before, tmp_path / "before.json")
    files.write(after, tmp_path / "after.json")
    return tmp_path / "before.json", tmp_path / "after.json"


def test_what_got_slower(two: tuple[Path, Path]) -> None:
    before, after = map(files.read, two)
    found = compare_runs(("a", before), ("b", after))
    assert found.slower == pytest.approx(0.5)
    assert [(one.name, one.delta) for one in found.phases] == [("fallback", 5.0), ("tracing", 0.0), ("look-up", 0.0), ("waiting", 0.0)]
    changes = {change.name: change for change in found.figures}
    assert changes["CPU calls per step"].after == 1.0 and changes["CPU calls per step"].ratio is None
    assert changes["median step"].ratio == pytest.approx(0.5) and changes["mean step"].delta == pytest.approx(5.0)
    assert "reads per step" not in changes, "neither has any"
    assert [one.problem for one in found.new] == [Problem.FALLBACK] and [one.problem for one in found.gone] == [Problem.READS]
    assert found.environment == {"torch": ("2.13.0", "2.14.0"), "XLA_DEBUG_ACCOUNT_DIR": ("/run/recordings", None)}


def test_the_text_of_a_difference(two: tuple[Path, Path]) -> None:
    result = run("diff", *two)
    said = " ".join(result.stdout.split())
    assert result.exit_code == 0 and max(map(len, result.stdout.splitlines())) <= 80
    for part in (
        "50 % slower: 15.0 ms per step, before 10.0 ms, most of it in fallback",
        "fallback 0 ms 5.00 ms +5.00 ms",
        "tracing 5.00 ms 5.00 ms same",
        "median step 10.0 ms 15.0 ms +5.00 ms +50 %",
        "device at work 30 % 20 % -10 %",
        "New findings operators on the CPU model.py:1 a value was read",
        "Findings gone reads in the loop train.py:3",
        "torch 2.13.0 2.14.0",
        "XLA_DEBUG_ACCOUNT_DIR /run/recordings not set",
    ):
        assert part in said, part
    assert "33 % faster: 10.0 ms per step" in run("diff", *reversed(two)).stdout
    assert "as fast as before: 10.0 ms per step" in run("diff", two[0], two[0]).stdout


def test_a_difference_as_json(two: tuple[Path, Path], tmp_path: Path) -> None:
    assert run("diff", *two, "--json", tmp_path / "d.json").stdout == ""
    found = json.loads((tmp_path / "d.json").read_text())
    assert (found["format"], found["version"]) == ("xla-debug comparison", 1) and found["slower"] == pytest.approx(0.5)
    assert found["before"]["name"] == str(two[0]) and found["after"]["phases_ms"]["fallback"] == 5.0
    assert found["phases"][0] == {"name": "fallback", "unit": "ms", "before": 0.0, "after": 5.0}
    assert [one["problem"] for one in found["new"]] == ["operators on the CPU"]


@pytest.mark.parametrize(("limit", "code"), [(60, 0), (50.5, 0), (49.5, 1), (0, 1)])
def test_exit_code_above_a_limit(limit: float, code: int, two: tuple[Path, Path]) -> None:
    result = run("diff", *two, "--fail-above", limit)
    assert result.exit_code == code and "50 % slower" in result.stdout
    assert run("diff", *reversed(two), "--fail-above", limit).exit_code == 0, "faster"


def test_without_steps_there_is_nothing_to_compare(two: tuple[Path, Path], replica: Make, run_report: MakeReport, tmp_path: Path) -> None:
    files.write(run_report(replica(steps=0, per_step={}, device_ms=0.0)), tmp_path / "empty.json")
    result = run("diff", two[0], tmp_path / "empty.json")
    assert result.exit_code == 0 and "no steps to compare" in result.stdout
    result = run("diff", two[0], tmp_path / "empty.json", "--fail-above", 5)
    assert result.exit_code == 2 and "empty.json: a run without steps" in result.stderr
    assert run("diff", *two, "--fail-above", "-1").exit_code == 2


def test_a_step_that_compiles_is_no_slower_run(replica: Make, run_report: MakeReport) -> None:
    steps = [Step(0.0, {"tracing": 10.0} | ({"compile": 3000.0} if number == 0 else {}), 3.0) for number in range(50)]
    once = replica(steps=50, per_step={"tracing": 10.0, "compile": 60.0}, timeline=steps)
    assert compare_runs(("a", run_report(replica())), ("b", run_report(once))).slower == pytest.approx(0.0)


def test_findings_move_with_their_lines(replica: Make, run_report: MakeReport) -> None:
    def of(*findings: Finding) -> RunReport:
        return run_report(replica(findings=list(findings)))

    old = of(finding("/old/train.py:10"), finding("/old/train.py:20"), finding("/old/data.py:1"))
    new = of(
        finding("/new/train.py:12"), finding("/old/train.py:20"), finding("/new/train.py:30"), finding("/new/data.py:1", Problem.LOADER)
    )
    found = compare_runs(("old", old), ("new", new))
    assert [(one.problem, one.line) for one in found.new] == [(Problem.READS, "/new/train.py:30"), (Problem.LOADER, "/new/data.py:1")]
    assert [one.line for one in found.gone] == ["/old/data.py:1"]


def test_the_summary_of_a_run(full: Make, run_report: MakeReport) -> None:
    found = summarize("x", run_report(full(0), full(1)))
    assert (found.replicas, found.steps, found.step_ms, found.verdicts) == (2, 100, 10.0, ["tracing-bound"])
    assert (found.compiles, found.compile_ms, found.reads_per_step, found.fallbacks_per_step) == (2, 1350.0, 1.0, 1.0)
    assert (found.blocked_ms_per_step, found.moved_per_step, found.peak, found.findings) == (4.0, 202_756.0, 64 << 20, 2)
    assert found.device == pytest.approx(3.0 / 15.3) and list(found.phases_ms) == ["tracing", "compile", "waiting", "fallback"]
    assert dataclasses.replace(summarize("y", run_report()), name="") == summarize("", run_report()), (
        "a run without replicas has a summary too"
    )


def test_several_runs_in_one_table(two: tuple[Path, Path], tmp_path: Path) -> None:
    result = run("compare", *two, two[0])
    said = " ".join(result.stdout.split())
    assert result.exit_code == 0 and max(map(len, result.stdout.splitlines())) <= 80
    assert said.count("1.00 ×") == 2 and "15.0 ms 1.50 × 20 %" in said and said.count("tracing-bound, 1 replica, 1 finding") == 3
    assert run("compare", two[0], "--json", tmp_path / "c.json").exit_code == 0
    found = json.loads((tmp_path / "c.json").read_text())
    assert (found["format"], found["version"]) == ("xla-debug runs", 1) and [one["step_ms"] for one in found["runs"]] == [10.0]
    assert json.loads(run("compare", *two, "--json", "-").stdout)["runs"][1]["step_ms"] == 15.0

"""Find the problems in a replica's part of a run report. Each rule has a threshold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from xla_debug.run_report.excerpts import source_line
from xla_debug.run_report.schema import Bottleneck, Change, Compile, Finding, HotLine, Phase, Problem, Replica

WARM_UP = 3
"""Steps in which compilations are expected: parameters, then optimizer state, then numbers that change become inputs."""
_RECOMPILES = 3
_TURNS = 4
"""Programs that one line asks for within a step, from which it is a finding: a function that reads twice may be called with two shapes."""
_FEWEST_STEPS = 5
_FALLBACKS = 3
_WAIT_SHARE = 0.05
"""Share of the run without compilations, spent waiting for values that one line reads."""
_HOST_SHARE = 0.2
"""Share of the run without compilations, spent in loaders, or in the user's other Python code."""
_LEAST_MS = 200.0
"""Milliseconds in loaders or Python code, at least, so that a handful of samples is no finding."""

_SLEEP = re.compile(r"\bsleep\s*\(")

_SAME = "keep the shapes in the loop the same: write into tensors of the full length, or pad to a few lengths (docs/recompiling.md)"
_GENERATE = (
    "the ids of generate grow with each token: give it cache_implementation='static', and capture the model before, "
    "model.forward = torch_xla.compile(model.forward, capture=True), so that it is compiled for the prompt and for a token, not for each "
    "length (docs/performance.md)"
)

_KINDS: Mapping[Change, Problem] = {
    Change.INPUT_SHAPE: Problem.SHAPES,
    Change.INPUT_DTYPE: Problem.SHAPES,
    Change.CONSTANT: Problem.NUMBERS,
    Change.ARGUMENT: Problem.NUMBERS,
}


def find_problems(replica: Replica, waits: Mapping[str, tuple[int, float]]) -> list[Finding]:
    """List the findings of one replica, the costliest first. waits: by line, the steps in which it waited for a value, and ms in all."""
    rules = (_recompiles(replica), _turns(replica), _reads(replica, waits), _fallbacks(replica), _loaders(replica), _python(replica))
    return sorted((finding for rule in rules for finding in rule), key=lambda finding: -finding.cost_ms)


def _without_compilations(replica: Replica) -> float:
    """The milliseconds of the measured steps without compilations, which may have taken any time."""
    return sum(replica.phases_ms.values()) - replica.phases_ms.get(Phase.COMPILE.value, 0.0)


def _recompiles(replica: Replica) -> Iterator[Finding]:
    """Find programs that are compiled again and again for the same kind of reason at the same line."""
    groups: dict[tuple[Problem, str | None], list[Compile]] = {}
    for compiled in replica.compiles:
        if compiled.difference.change is not Change.FIRST and compiled.step >= WARM_UP:
            problem = _KINDS.get(compiled.difference.change, Problem.PROGRAMS)
            groups.setdefault((problem, compiled.difference.line), []).append(compiled)
    for (problem, line), group in groups.items():
        if len(group) >= _RECOMPILES:
            last = group[-1].difference
            text = f"{len(group)} compilations after the first steps; the last because {last.text}"
            yield Finding(problem, line, text, last.advice, sum(program.ms for program in group))


def _turns(replica: Replica) -> Iterator[Finding]:
    """Find loops without steps that read in each turn: one line asks for program after program before any step ends."""
    groups: dict[tuple[int, str | None], list[Compile]] = {}
    for compiled in replica.compiles:
        if compiled.step < WARM_UP:  # `_recompiles` finds later ones by their reasons
            groups.setdefault((compiled.step, compiled.line), []).append(compiled)
    for (_, line), group in groups.items():
        if line is not None and len(group) >= _TURNS:
            ms = sum(program.ms for program in group)
            text = f"{len(group)} programs were compiled for this line within one step, {ms / 1e3:.1f} s: it asks for another one each time"
            yield Finding(Problem.PROGRAMS, line, text, _GENERATE if "transformers/generation/" in line else _SAME, ms)


def _reads(replica: Replica, waits: Mapping[str, tuple[int, float]]) -> Iterator[Finding]:
    """Find values that are read in most turns of a loop: each read runs what is pending for it, or waits for the step."""
    turns = max((sync.count for sync in replica.syncs if sync.kind == "step"), default=0)
    if turns < _FEWEST_STEPS:
        return
    run_ms = _without_compilations(replica)
    fallback_lines = {fallback.line for fallback in replica.fallbacks}
    blocked = {sync.line: (sync.steps, sync.blocked_ms) for sync in replica.syncs if sync.kind == "read" and sync.line is not None}
    for line in dict.fromkeys((*blocked, *waits)):
        if line in fallback_lines:
            continue  # `_fallbacks` reports the operator on the CPU
        steps, ms = blocked.get(line, (0, 0.0))
        wait_steps, wait_ms = waits.get(line, (0, 0.0))
        often = 2 * steps >= turns
        waiting = 2 * wait_steps >= turns and wait_ms >= _WAIT_SHARE * run_ms
        if often or waiting:
            cost = max(ms, wait_ms)
            reason = "runs what is pending" if often else "waits for the step"
            yield Finding(
                Problem.READS,
                line,
                f"a value is read in {max(steps, wait_steps)} steps, the loop has {turns}: each read {reason}",
                "read every N steps, or some steps later: keep loss.detach(), or read it in a step closure (xm.add_step_closure)",
                cost,
            )


def _fallbacks(replica: Replica) -> Iterator[Finding]:
    for fallback in replica.fallbacks:
        if fallback.count >= _FALLBACKS:
            yield Finding(
                Problem.FALLBACK,
                fallback.line,
                f"{fallback.operator} has no XLA lowering: it ran on the CPU {fallback.count} times, moving {fallback.nbytes:,} bytes",
                "use operators that have one, or register a lowering (docs/extending.md)",
                fallback.ms,
            )


def _loaders(replica: Replica) -> Iterator[Finding]:
    """Find loaders for whose batches the devices wait."""
    host_time = _host_time(replica, Phase.LOADER)
    if host_time is not None:
        line, share = host_time
        yield Finding(
            Problem.LOADER,
            line,
            f"{share} goes into batches, most of it here",
            "load in the background: DataLoader(num_workers=...), or more of them, wrapped in MpDeviceLoader; or make batches cheaper",
            replica.phases_ms[Phase.LOADER.value],
        )


def _python(replica: Replica) -> Iterator[Finding]:
    """Find the user's Python code for which the devices wait."""
    host_time = _host_time(replica, Phase.PYTHON)
    if host_time is not None:
        line, share = host_time
        asleep = _SLEEP.search(source_line(line)) is not None
        yield Finding(
            Problem.PYTHON,
            line,
            f"{share} is slept here" if asleep else f"{share} goes into Python code that is neither torch nor a loader, most of it here",
            "take the wait out of the loop, or let a thread wait"
            if asleep
            else "do it once before the loop, every N steps, in the loader's workers, or with tensors on the device",
            replica.phases_ms[Phase.PYTHON.value],
        )


def _host_time(replica: Replica, phase: Phase) -> tuple[str | None, str] | None:
    """Find the line with most of a phase's time, and describe the phase's share; None if that is too small for a finding."""
    run_ms, ms = _without_compilations(replica), replica.phases_ms.get(phase.value, 0.0)
    # Host time that overlaps with the device's work costs nothing.
    hidden = replica.verdict is Bottleneck.DEVICE
    if hidden or replica.measured_steps < _FEWEST_STEPS or ms < max(_HOST_SHARE * run_ms, _LEAST_MS):
        return None
    lines: list[HotLine] = [hot_line for hot_line in replica.hot_lines if hot_line.phase == phase.value]
    share = f"{ms / run_ms:.0%} of the time without compilations, {ms / replica.measured_steps:.1f} ms a step,"
    return (lines[0].line if lines else None), share

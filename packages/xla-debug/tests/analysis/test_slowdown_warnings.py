"""Lines about what keeps steps from being fast: when they come, and when they come again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xla_debug.analysis.slowdown_warnings import PREFIX, Event, SlowdownWarnings
from xla_debug.core import events as events_abi

ABOUT: dict[str, Any] = {"device": "xla:0", "start_s": 1.0}
PROGRAM: dict[str, Any] = ABOUT | {"graph_hash": "0f", "num_nodes": 1, "num_inputs": 1, "num_outputs": 1}
STEP = events_abi.SyncEvent(**ABOUT, duration_ns=1, kind=events_abi.SyncKind.STEP)
READ = events_abi.TransferEvent(**ABOUT, duration_ns=1, direction=events_abi.Direction.FROM_DEVICE, nbytes=4)
UPLOAD = events_abi.TransferEvent(**ABOUT, duration_ns=1, direction=events_abi.Direction.TO_DEVICE, nbytes=4)


def compiled(seconds: float = 0.1) -> events_abi.CompileEvent:
    return events_abi.CompileEvent(**PROGRAM, duration_ns=int(seconds * 1e9))


def executed(seconds: float) -> events_abi.ExecuteEvent:
    return events_abi.ExecuteEvent(**PROGRAM, duration_ns=int(seconds * 1e9))


def fell_back(operator: str) -> events_abi.FallbackEvent:
    return events_abi.FallbackEvent(**ABOUT, duration_ns=1, operator=operator)


@pytest.fixture
def after(tmp_path: Path) -> Callable[..., list[str]]:
    """The lines that come while these events happen, without their prefix."""
    path = tmp_path / "said"
    health = SlowdownWarnings(str(path))

    def lines(*events: Event) -> list[str]:
        path.write_text("")
        for event in events:
            health.note(event)
        found = path.read_text().splitlines()
        assert all(line.startswith(PREFIX) for line in found)
        return [line.removeprefix(PREFIX) for line in found]

    return lines


def test_compilations_count_after_ten_steps(after: Callable[..., list[str]]) -> None:
    assert after(*[compiled(), STEP] * 9) == []
    assert after(compiled(), STEP) == [
        "CompileTime: 10 compilations in 10 steps; shapes or Python numbers change from step to step",
    ]
    assert after(*[compiled(), STEP] * 9) == []
    assert [line.split(";")[0] for line in after(compiled(), STEP)] == ["CompileTime: 20 compilations in 20 steps"]


def test_one_compilation_in_two_steps_is_healthy(after: Callable[..., list[str]]) -> None:
    assert after(*[STEP, STEP, compiled()] * 10) == []


def test_reads(after: Callable[..., list[str]]) -> None:
    assert after(UPLOAD, STEP, READ, STEP) == []
    assert after(READ, STEP) == ["TransferFromDeviceTime: 2 reads in 3 steps; read values less often, not in each step"]
    assert after(READ, STEP) == []


@pytest.mark.parametrize(
    ("event", "healthy", "line"),
    [
        (compiled(301), compiled(299), "CompileTime: a compilation took 301 s; record smaller steps"),
        (executed(31), executed(29), "ExecuteTime: an execution took 31 s; record smaller steps"),
    ],
)
def test_programs_that_take_long(after: Callable[..., list[str]], event: Event, healthy: Event, line: str) -> None:
    assert after(healthy, STEP) == []
    assert after(event, STEP, STEP, event, STEP) == [line]


def test_operators_on_the_cpu(after: Callable[..., list[str]]) -> None:
    assert after(fell_back("aten::_local_scalar_dense"), STEP) == []
    assert after(fell_back("aten::linalg_ldl_factor_ex"), STEP) == [
        "aten::linalg_ldl_factor_ex has no lowering: 1 calls ran on the CPU in 2 steps"
    ]


@pytest.mark.parametrize(("level", "said"), [("2", False), ("3", True)])
def test_the_environment_asks_for_them(script: Callable[..., Any], level: str, said: bool) -> None:
    ended = script(
        """
        import torch, torch_xla
        x = torch.ones(3).to("xla")
        for _ in range(3):
            x = x * 2
            torch_xla.sync()
            x.tolist()
        """,
        PT_XLA_DEBUG_LEVEL=level,
    )
    lines = [line for line in ended.err.splitlines() if line.startswith(PREFIX)]
    assert [line.split(";")[0] for line in lines] == [f"{PREFIX}TransferFromDeviceTime: {n} reads in {n + 1} steps" for n in (2,) if said]

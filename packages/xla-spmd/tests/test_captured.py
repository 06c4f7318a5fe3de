"""Captured training over a mesh is, to the bit, the recorded one, and leaves data sharded as it was."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import forked_python
import pytest

PROGRAM = Path(__file__).parent / "programs" / "captured.py"
# The calls that are recorded: those in which the optimizer's state is made, and those behind another sharding.
RECORDED = {
    "momentum": [0, 1, 2],
    "AdamW": [0, 1, 2],
    "marked anew": [0, 1, 2, 8, 9],
    "inputs marked otherwise": [0, 1, 2, 8, 9],
    "FSDPv2": [0, 1, 2],
}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """Of `programs/captured.py` over four devices."""
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}
    done = forked_python.run([sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("case", RECORDED)
def test_captured_training_is_the_recorded_training(case: str, report: dict[str, Any]) -> None:
    assert "failed" not in report[case], report[case].get("failed")
    recorded, captured = report[case]["recorded"], report[case]["captured"]
    assert captured["losses"] == recorded["losses"]
    assert captured["held"] == recorded["held"]


@pytest.mark.parametrize("case", RECORDED)
def test_all_but_the_first_calls_are_launches(case: str, report: dict[str, Any]) -> None:
    assert report[case]["recorded"]["captured"] == []
    captured = report[case]["captured"]
    assert captured["captured"] == [number for number in range(len(captured["losses"])) if number not in RECORDED[case]]


@pytest.mark.parametrize("case", RECORDED)
def test_shardings_are_as_recorded_and_do_not_change(case: str, report: dict[str, Any]) -> None:
    shardings = report[case]["captured"]["shardings"]
    assert shardings == report[case]["recorded"]["shardings"]
    # Only what is marked otherwise between two calls is another one.
    assert len(shardings) == (3 if case == "marked anew" else 1)
    assert any(shardings[0])

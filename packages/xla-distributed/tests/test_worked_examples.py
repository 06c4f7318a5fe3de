"""Whole scripts of several processes, as users start them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_python
import pytest
import torch

PROGRAM = Path(__file__).parent / "programs" / "guide.py"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of the script when it is started from a shell with `PJRT_DEVICE` and nothing else of ours."""
    folder = tmp_path_factory.mktemp("guide")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CPU_", "XLA_"))}
    command = [sys.executable, str(PROGRAM), str(folder)]
    done = forked_python.run(command, env={**environment, "PJRT_DEVICE": "CPU"}, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((folder / "0.json").read_text(encoding="utf-8"))
    return report


def test_the_guides_script_from_a_shell(alone: dict[str, Any]) -> None:
    assert alone["size"] == 1


def test_the_guides_script_on_two_replicas(start: Callable[..., Any], alone: dict[str, Any]) -> None:
    """Equal data on all replicas: their mean gradient is that of one."""
    for report in start("guide", 2).reports():
        assert report["size"] == 2
        for mine, theirs in zip(report["parameters"], alone["parameters"], strict=True):
            torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs))

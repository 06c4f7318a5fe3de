"""What the tests of released libraries share: processes of their own, and closeness to the CPU."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parent
LIMIT = 300.0

sys.path.insert(0, str(FOLDER))
importlib.import_module("torchvision_operators")  # before any library that imports torchvision

Run = Callable[..., Any]
Close = Callable[..., None]


@pytest.fixture(scope="session")
def run_program(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program of `programs/` in an interpreter of its own, and gives what it reported: the JSON in the file that it was given."""

    def run(name: str, *args: object, **variables: str) -> Any:
        folder = tmp_path_factory.mktemp(name)
        environment = {**os.environ, "PJRT_DEVICE": "CPU", "PYTHONPATH": str(FOLDER), "PYTHONWARNINGS": "default", **variables}
        command = [sys.executable, str(FOLDER / "programs" / f"{name}.py"), str(folder / "report.json"), *map(str, args)]
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
        return json.loads((folder / "report.json").read_text(encoding="utf-8"))

    return run


@pytest.fixture
def assert_same_weights() -> Close:
    """Asserts that two modules have the same state, wherever it is."""

    def check(ours: torch.nn.Module, cpu: torch.nn.Module, tolerance: float = 1e-5) -> None:
        state = ours.state_dict()
        assert state.keys() == cpu.state_dict().keys()
        for name, value in cpu.state_dict().items():
            torch.testing.assert_close(
                state[name].cpu(), value, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
            )

    return check

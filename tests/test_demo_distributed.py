"""`hatch run demo-distributed`: the same parameters whatever the number of replicas, and one progress bar."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import forked_python
import pytest
import torch

PROGRAM = Path(__file__).resolve().parents[1] / "examples" / "digits_distributed.py"


def train(replicas: int, folder: Path) -> tuple[dict[str, torch.Tensor], str]:
    """The parameters after an epoch, and what was printed."""
    weights = folder / f"{replicas}.pt"
    command = [sys.executable, str(PROGRAM), "--replicas", str(replicas), "--epochs", "1", "--weights", str(weights)]
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1"}
    done = forked_python.run(command, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Gloo" not in done.stdout and done.stderr == "", "libraries under it have nothing to say"
    return torch.load(weights), done.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The parameters that one process makes."""
    return train(1, tmp_path_factory.mktemp("alone"))[0]


@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=pytest.mark.long)])
def test_replicas_train_the_same_parameters_as_one_process(replicas: int, alone: dict[str, torch.Tensor], tmp_path: Path) -> None:
    weights, printed = train(replicas, tmp_path)
    for name, expected in alone.items():
        torch.testing.assert_close(weights[name], expected, rtol=1e-3, atol=1e-4)
    assert printed.count("test accuracy") == 1 and f"{replicas} replicas of {64 // replicas} digits" in printed

"""Memory on the host: a save, and a load straight to the device, take one tensor and a quarter beside the state at most.

`programs/memory.py` says what is counted, and under which limit it runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch

import xla_serialization as checkpoint

PROGRAM = Path(__file__).parent / "programs" / "memory.py"
MB = 1 << 20


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, check=False)


def check(folder: Path, tensors: int, megabytes: int) -> None:
    """Save and load such a state, each in a process of its own."""
    tensor, state = megabytes * MB, tensors * megabytes * MB
    for what, least, most in (("save", tensor // 2, tensor * 5 // 4), ("load", state * 9 // 10, state + tensor * 5 // 4)):
        done = run(what, folder, tensors, megabytes)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["right"]
        assert least < found["risen"] <= most, f"{what}: {found['risen'] / MB:.1f} MB, of {least / MB:.1f} to {most / MB:.1f}"


def test_one_tensor_at_a_time(tmp_path: Path) -> None:
    # of 32 MB: what is smaller, malloc keeps for the next when it is freed
    check(tmp_path / "state", 8, 32)


@pytest.mark.parametrize(("tensors", "megabytes"), [(100, 2), pytest.param(300, 4, marks=pytest.mark.long)])
def test_of_many_small_tensors_one_at_a_time(tmp_path: Path, tensors: int, megabytes: int) -> None:
    """One tensor and a quarter; on a busy machine two, where threads of the runtime take memory from another arena of malloc's."""
    done = run("save", tmp_path / "state", tensors, megabytes)
    assert done.returncode == 0, done.stderr
    found, most = json.loads(done.stdout.splitlines()[-1]), megabytes * MB * 9 // 4
    assert found["right"] and megabytes * MB // 2 < found["risen"] <= most, f"{found['risen'] / MB:.2f} MB, of {most / MB:.2f}"


def test_little_is_kept_of_each_tensor(tmp_path: Path) -> None:
    """Not even when the index is made and checked, which makes an object of each of its numbers."""
    state = {f"model.layers.{number}.self_attn.q_proj.weight": torch.ones(4, 4) for number in range(1000)}
    checkpoint.save(state, tmp_path / "before")  # what is imported and compiled at first use
    tracemalloc.start()
    try:
        checkpoint.save(state, tmp_path / "state")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / len(state) < 6000, "bytes"


def test_beside_training_one_copy_of_the_state(tmp_path: Path) -> None:
    done = run("beside", tmp_path / "run", 8, 32)
    assert done.returncode == 0, done.stderr
    found, state = json.loads(done.stdout.splitlines()[-1]), 8 * 32 * MB
    assert found["right"]
    # The state, a copy that is being written, and what compiling the steps takes.
    assert state * 3 // 2 < found["risen"] <= 2 * state + 3 * 32 * MB, f"{found['risen'] / MB:.1f} MB for a state of {state / MB:.0f}"


@pytest.mark.long
def test_four_gigabytes_one_tensor_at_a_time(tmp_path: Path) -> None:
    check(tmp_path / "state", 16, 256)

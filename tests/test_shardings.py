"""What programs over several devices exchange and hold on targets, beside JAX's own programs of the same sharding."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "shardings.py"
COUNTS = {"v5e:2x4": 8, "v5e:16x16": 256}
# The memory of these is divided by the number of devices; the others keep parameters whole, or cut in fewer parts.
DIVIDED = {"fsdp", "FSDPv2", "FSDP", "FSDP, flat", "fully_shard"}
Report = dict[str, dict[str, Any]]


def report(which: str, target: str) -> Report:
    """What the program prints in a process of its own: replicas and meshes exclude each other."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, PROGRAM, which, target], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: Report = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.targets
@pytest.mark.parametrize("target", COUNTS)
@pytest.mark.parametrize(("which", "least"), [("mesh", 5), ("steps", 5), ("collectives", 10)])
def test_programs_exchange_and_hold_what_those_by_hand_do(which: str, least: int, target: str) -> None:
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu: hatch run targets:test")
    rows = report(which, target)
    assert len(rows) >= least
    for name, row in rows.items():
        ours, by_hand = row["ours"], row["jax"]
        assert ours["sent"] <= 1.01 * by_hand["sent"], f"{name} sends more: {row}"
        # DistributedDataParallel keeps its buckets between steps, here as elsewhere: the gradients once more.
        kept = row["parameters"] if name == "DDP" else 0
        assert ours["arguments"] <= 1.01 * by_hand["arguments"] + kept + 4096, f"{name} holds more: {row}"
        if name in DIVIDED:
            state = 3 * row["parameters"] / COUNTS[target]  # parameters and Adam's two moments
            assert ours["arguments"] - row["batch"] <= 1.05 * state + 16384, f"{name} does not divide its state: {row}"

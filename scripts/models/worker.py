"""Measures one entry in this process and writes its row as JSON: `worker.py NAME FILE --inductor|--no-inductor BUDGET`.

A run of a library's own loop takes a second process, `worker.py NAME FILE cpu`, in which the libraries leave torch_xla alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import entries  # isort: skip  # before what imports torchvision
import measuring
from case import Entry


def on_cpu(entry: Entry) -> dict[str, Any]:
    """Results, weights and milliseconds of a run on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "ran.pt"
        command = [sys.executable, __file__, entry.name, str(target), "cpu"]
        subprocess.run(command, env={**os.environ, "USE_TORCH_XLA": "0"}, check=True)
        found: dict[str, Any] = torch.load(target)
    return found


def observe_run(entry: Entry) -> dict[str, Any]:
    """The row of a run: its results are the outputs, its weights stand where the gradients do."""
    if entry.run is None:
        raise ValueError(f"{entry.name} is no run but a network")
    torch.manual_seed(0)
    found, expected = entry.run("xla"), on_cpu(entry)
    if found.weights.keys() != expected["weights"].keys():
        raise ValueError(f"the weights are {sorted(found.weights)} on xla and {sorted(expected['weights'])} on the CPU")
    largest = max((value.abs().max().item() for value in measuring.floats(expected["weights"])), default=0.0)
    return {
        "outputs": measuring.difference(found.results, expected["results"]),
        "gradients": measuring.difference(found.weights, expected["weights"], largest) if found.weights else None,
        "late_compiles": found.late_compiles,
        "fallbacks": measuring.fallbacks(),
        "xla_ms": found.ms,
        "eager_ms": expected["ms"],
    }


def main() -> None:
    name, target, how = sys.argv[1:4]
    entry = entries.named(name)
    if how == "cpu" and entry.run is not None:
        torch.manual_seed(0)
        ran = entry.run("cpu")
        torch.save({"results": ran.results, "weights": ran.weights, "ms": ran.ms}, target)
        return
    row = observe_run(entry) if entry.run is not None else measuring.observe(entry, how == "--inductor", float(sys.argv[4]))
    Path(target).write_text(json.dumps(row), encoding="utf-8")


if __name__ == "__main__":
    main()

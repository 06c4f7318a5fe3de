"""A worker process: reads tasks as JSON lines from stdin, writes a result line for each to the stdout it was started with."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import jax
import torch

import checks
from entries import Suite, Task


def main(device: str, samples: int, damage: bool) -> None:
    """Serve tasks until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what operators print must not get among the answers
    torch.set_num_threads(1)
    settings = checks.Settings(device, samples, damage)
    if device == "xla":
        import torch_xla  # noqa: F401 - adds the device
    for line in sys.stdin:
        given = json.loads(line)
        start = time.perf_counter()
        found: dict[str, Any]
        try:
            found = checks.run(Task(Suite(given["suite"]), given["number"], given["name"]), settings)
        except Exception as error:
            found = {
                "any": {"forward": checks.Result(checks.Outcome.ERROR, 0, f"the check itself failed: {checks.short(error)}").as_json()}
            }
        answers.write(json.dumps({"seconds": round(time.perf_counter() - start, 2), "found": found}) + "\n")
        jax.clear_caches()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "damage")

"""Measures one entry in this process and writes its row as JSON: `worker.py NAME FILE --inductor|--no-inductor BUDGET`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import entries  # isort: skip  # before what imports torchvision
import measuring


def main() -> None:
    name, target, inductor, budget = sys.argv[1:5]
    row = measuring.observe(entries.named(name), inductor == "--inductor", float(budget))
    Path(target).write_text(json.dumps(row), encoding="utf-8")


if __name__ == "__main__":
    main()

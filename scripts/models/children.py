"""Runs an entry in a process of its own, so that what ends it is one row."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def row_of(worker: str, name: str, options: list[str], environment: Mapping[str, str], limit_s: float) -> dict[str, Any]:
    """What `worker NAME FILE OPTIONS`, a script of this folder, writes as JSON; what failed is the row's `error`."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "row.json"
        command = [sys.executable, str(Path(__file__).with_name(worker)), name, str(target), *options]
        try:
            done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {limit_s:.0f} s"}
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode} and said nothing"]
            return {"error": next((line for line in reversed(lines) if re.match(r"\w[\w.]*(Error|Exception)\b", line)), lines[-1])[:300]}
        row: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
        return row

"""Process groups under torchrun: fewer hosts than it might have, and workers that are started again after one was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "programs" / "restarted.py"


def test_one_host_of_two_and_a_restart(
    launch: Callable[[list[str], dict[str, str]], subprocess.Popen[str]], free_port: int, tmp_path: Path
) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "CPU_NUM_DEVICES"}
    environment |= {"PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1"}
    options = ["--nnodes=1:2", "--nproc-per-node=2", "--max-restarts=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port}"]
    options += ["--rdzv-id=restarted", "--rdzv-conf=last_call_timeout=1"]
    process = launch([sys.executable, "-m", "torch.distributed.run", *options, str(PROGRAM), str(tmp_path)], environment)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0, errors
    assert "Signal 9 (SIGKILL)" in errors or "exitcode: -9" in errors, errors
    for rank in range(2):
        report = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        assert report == {"life": 1, "size": 2, "sum": [6.0]}

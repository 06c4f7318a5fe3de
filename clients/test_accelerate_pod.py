"""`accelerate launch` on a TPU pod: through `xla_dist` and a `gcloud` that runs the command here, on two devices of the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "programs" / "accelerate_pod_script.py"
CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: XLA
main_training_function: main
mixed_precision: 'no'
num_machines: 1
num_processes: 2
tpu_name: my-pod
tpu_use_cluster: true
tpu_use_sudo: false
use_cpu: false
debug: false
"""
GCLOUD = """import os, sys
command = next(word.partition("=")[2] for word in sys.argv if word.startswith("--command="))
with open(os.environ["GCLOUD_LOG"], "w") as file:
    file.write(" ".join(sys.argv[1:6]))
os.execvp("sh", ["sh", "-c", command])
"""
ACCELERATE = """from accelerate.commands.launch import main
if __name__ == "__main__":
    main()
"""


def test_the_script_runs_on_the_hosts_of_the_pod(tmp_path: Path) -> None:
    tools, log, config = tmp_path / "bin", tmp_path / "log", tmp_path / "config.yaml"
    tools.mkdir()
    for name, program in (("gcloud", GCLOUD), ("accelerate-launch", ACCELERATE)):
        (tools / name).write_text(f"#!{sys.executable}\n{program}")
        (tools / name).chmod(0o755)
    config.write_text(CONFIG)
    variables = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2", "GCLOUD_LOG": str(log)}
    command = [tools / "accelerate-launch", "--config_file", config, SCRIPT, tmp_path]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert log.read_text() == "compute tpus tpu-vm ssh my-pod"
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)] == [[rank, 2, 2.0, "1"] for rank in range(2)]

"""The private names of torch that this package uses are there, and do what their names here say."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import forked_python
import pytest

CODE = """
import torch, torch_xla
from xla_debug import _compat
print(_compat.trace_log_is_written())
step = lambda x: x.sinh().sum()
for size in (3, 4):
    kept = step(torch.ones(size).to("xla"))
    torch_xla.sync()
"""


def run(folder: Path, **variables: str) -> str:
    """What a program prints that compiles twice."""
    script = folder / "script.py"
    script.write_text(CODE)
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_TRACE"} | {"PJRT_DEVICE": "CPU", **variables}
    done = forked_python.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def artifacts(folder: Path) -> dict[str, str]:
    """Name → payload of the artifacts in torch's trace logs below a folder."""
    found: dict[str, str] = {}
    for log in folder.glob("dedicated_log_torch_trace_*.log"):
        name = None
        for line in log.read_text(encoding="utf-8").splitlines():
            if line.startswith("\t"):
                if name is not None:
                    found[name] = f"{found.get(name, '')}{line[1:]}\n"
            else:
                name = json.loads(line[line.index("{") :]).get("artifact", {}).get("name")
    return found


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("traced")
    assert run(folder, TORCH_TRACE=str(folder / "trace")) == "True"
    return artifacts(folder / "trace")


def test_compilations_are_artifacts_of_torch_s_trace_log(traced: dict[str, str]) -> None:
    ours = sorted(name for name in traced if name.startswith("xla_"))  # torch adds its version
    assert ours == ["xla_compile_0", "xla_compile_1", "xla_program_0", "xla_program_1"]
    assert "aten.sinh" in traced["xla_program_0"] and "f32[4]" in traced["xla_program_1"]
    first, why = (json.loads(traced[f"xla_compile_{number}"]) for number in range(2))
    assert why["difference"]["change"] == "input shape" and why["difference"]["nearest"] == first["graph_hash"]
    assert why["line"].endswith("script.py:8") and why["duration_ms"] > 0


def test_without_a_trace_log_nothing_listens(tmp_path: Path) -> None:
    assert run(tmp_path) == "False" and list(tmp_path.iterdir()) == [tmp_path / "script.py"]

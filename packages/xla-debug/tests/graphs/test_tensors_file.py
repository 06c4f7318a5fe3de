"""XLA_SAVE_TENSORS_FILE."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import forked_python
import pytest

PROGRAM = """
import torch, torch_xla, torch_xla.runtime as xr
xr.use_spmd()
def train(tensor):
    kept = (tensor * 3).sin()
    torch_xla.sync()
    return kept
tensor = torch.ones(5).to("xla")
for _ in range(2):
    train(tensor)
"""
SPMD = """
import numpy as np, torch, torch_xla
import torch_xla.distributed.spmd as xs, torch_xla.runtime as xr
xr.use_spmd()
tensor = torch.ones(4, 2).to("xla")
xs.mark_sharding(tensor, xs.Mesh(np.arange(2), (2, 1), ("data", "model")), ("data", None))
kept = tensor * 3
torch_xla.sync()
"""


def saved(tmp_path: Path, program: str, form: str, **settings: str) -> str:
    path = tmp_path / "tensors.txt"
    given = {**os.environ, "PJRT_DEVICE": "CPU", "XLA_SAVE_TENSORS_FILE": str(path), "XLA_SAVE_TENSORS_FMT": form, **settings}
    script = tmp_path / "train.py"
    script.write_text(program)
    forked_python.run([sys.executable, str(script)], env=given, check=True, timeout=300)
    return path.read_text()


def test_each_run_of_a_program_is_saved_as_text(tmp_path: Path) -> None:
    text = saved(tmp_path, PROGRAM, "text", CPU_NUM_DEVICES="2")
    assert text.count("## BEGIN_GRAPH\nIR {") == text.count("## END_GRAPH") == text.count("[ScheduleSyncTensorsGraph]") == 2
    assert "train (" in text and "aten::sin(" in text and "device=CPU:0" in text
    first, second = re.findall(r"^Hashes: \((\w+)\)$", text, re.M)
    assert first == second


@pytest.mark.parametrize(("form", "shown"), [("hlo", "sharding={devices=[2,1]"), ("dot", "digraph")])
def test_other_forms(tmp_path: Path, form: str, shown: str) -> None:
    assert shown in saved(tmp_path, SPMD, form, CPU_NUM_DEVICES="2")

"""The programs of docs/parallelism.md print the losses of plain torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "parallelism.md"
PROGRAMS = dict(re.findall(r"^```py\n# (\w+)\.py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S))
DEVICES = {"two_axes": 4, "marks": 8, "fsdpv2": 8, "automatic": 8}
PLAIN = """
import torch
from model import GPT, batches, loss_of

model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for tokens in batches():
    optimizer.zero_grad()
    loss = loss_of(model, tokens)
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
"""


def losses(folder: Path, name: str, program: str, devices: int) -> list[float]:
    """What a program prints, over so many CPU devices."""
    (folder / "model.py").write_text(PROGRAMS["model"], encoding="utf-8")
    (folder / f"{name}.py").write_text(program, encoding="utf-8")
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices)}
    command = [sys.executable, f"{name}.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return [float(line.removeprefix("loss ")) for line in done.stdout.splitlines() if line.startswith("loss ")]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return losses(tmp_path_factory.mktemp("plain"), "plain", PLAIN, 1)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "model"])
def test_a_program_prints_the_losses_of_plain_torch(name: str, expected: list[float], tmp_path: Path) -> None:
    found = losses(tmp_path, name, PROGRAMS[name], DEVICES.get(name, 2))
    assert len(found) == 3 and found == pytest.approx(expected, abs=2e-4)

"""The programs of docs/parallelism.md print the losses of plain torch."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import forked_python
import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "parallelism.md"
PROGRAMS = dict(re.findall(r"^```py\n# (\w+)\.py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S))
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
# The same programs one after the other, in processes that are forked when all is imported: they take longer to start than to train.
REPLICAS = """
import importlib
import sys

import torch._dynamo
import torch.distributed as dist
import torch.distributed.tensor
import torch_xla


def run(index):
    for name in sys.argv[1:]:
        importlib.import_module(name).train(index)
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    torch_xla.launch(run, start_method="fork")
"""
ONE_PROGRAM = """
import importlib
import sys

for name in sys.argv[1:]:
    importlib.import_module(name)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has all programs of the page."""
    found = tmp_path_factory.mktemp("page")
    for name, program in {**PROGRAMS, "plain": PLAIN, "replicas_in_turn": REPLICAS, "in_turn": ONE_PROGRAM}.items():
        (found / f"{name}.py").write_text(program, encoding="utf-8")
    return found


def losses(folder: Path, devices: int, *command: str) -> list[float]:
    """What a program prints, over so many CPU devices."""
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices)}
    whole = [sys.executable, *command]
    done = forked_python.run(whole, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return [float(line.removeprefix("loss ")) for line in done.stdout.splitlines() if line.startswith("loss ")]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[float]:
    found = losses(folder, 1, "plain.py")
    assert len(found) == 3
    return found


@pytest.mark.parametrize(
    ("devices", "program", "names"),
    [
        (2, "replicas_in_turn.py", ["replicas"]),
        pytest.param(2, "replicas_in_turn.py", ["fsdp2", "tensor_parallel"], marks=pytest.mark.long),
        pytest.param(2, "replicas_in_turn.py", ["ddp", "zero", "fsdp"], marks=pytest.mark.long),
        pytest.param(4, "replicas_in_turn.py", ["two_axes"], marks=pytest.mark.long),
        (8, "in_turn.py", ["marks", "fsdpv2", "automatic"]),
    ],
)
def test_programs_print_the_losses_of_plain_torch(
    devices: int, program: str, names: list[str], expected: list[float], folder: Path
) -> None:
    assert losses(folder, devices, program, *names) == pytest.approx(expected * len(names), abs=2e-4)


def test_all_programs_are_run() -> None:
    replicas = {"replicas", "ddp", "zero", "fsdp", "fsdp2", "tensor_parallel", "two_axes"}
    assert set(PROGRAMS) == {"model", *replicas, "marks", "fsdpv2", "automatic"}

"""The replicas of a job compile ahead together: one compiles each program, the others load it, and what differs is an error on all."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_python
import pytest
import torch
from torch import nn


def expected() -> list[float]:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for rows in (2, 4, 6):
        optimizer.zero_grad()
        loss = model(torch.ones(rows, 5)).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_one_replica_compiles_and_the_others_load(start: Callable[..., Any], tmp_path: Path) -> None:
    reports = start("compile_only", 3, tmp_path / "cache", "same").reports()
    for report in reports:
        assert report["losses"] == pytest.approx(expected(), rel=1e-5)
        assert report["all"] == report["ahead"], "nothing is compiled behind the block, nor loaded"
    assert [report["ahead"] for report in reports] == [[3, 0], [1, 3], [0, 3]]
    assert [report["programs"] for report in reports] == [3, 4, 3]


def test_without_a_folder_each_compiles_for_itself(start: Callable[..., Any]) -> None:
    reports = start("compile_only", 2, "", "same").reports()
    assert [report["all"] for report in reports] == [report["ahead"] for report in reports] == [[3, 0], [4, 0]]


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (
            "operation",
            r"process 1 needs another program with collectives at .*compile_only.py:\d+ than .*sinh \(recorded at .*_only.py:\d+\)",
        ),
        ("fewer", r"process 0 needs no program like that with collectives which process 1 needs at .*compile_only.py:\d+"),
        ("nothing", r"process 0 needs no program like that with collectives which process 1 needs at .*compile_only.py:\d+"),
        ("flag", r"XLA_FLAGS is unset in process 0 and --xla_cpu_enable_fast_math=false in process 1"),
    ],
)
def test_what_differs_is_an_error_on_all(start: Callable[..., Any], tmp_path: Path, way: str, said: str) -> None:
    reports = start("compile_only", 2, tmp_path / "cache", way).reports()
    assert reports[0] == reports[1]
    assert re.search(said, reports[0]["error"]), reports[0]


def test_replicas_are_not_started_within_a_block() -> None:
    code = """
import torch_xla, torch_xla.distributed.xla_multiprocessing as xmp
with torch_xla.compile_only():
    xmp.spawn(print, nprocs=None)
"""
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2"}
    done = forked_python.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240)
    assert "2 processes would run their programs" in done.stderr and "enter that block in the function that they call" in done.stderr

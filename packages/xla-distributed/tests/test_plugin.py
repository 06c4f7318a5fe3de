"""What this package brings to the core keeps the contracts of its protocols, in real processes; the names of `_XLAC` stand on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla._XLAC as xlac

Start = Callable[..., Any]
LAUNCHING = """
from xla_core.testing import check_launcher
from xla_distributed.job import launcher

if __name__ == "__main__":
    check_launcher(launcher, 2)
"""


@pytest.mark.parametrize("size", [2, 3])
def test_the_backend_keeps_the_contract_of_collectives(start: Start, size: int) -> None:
    assert start("backend_contract", size).reports() == [{"checked": True}] * size


def test_the_launcher_keeps_its_contract(tmp_path: Path) -> None:
    program = tmp_path / "launching.py"
    program.write_text(LAUNCHING)
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2"}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_low_level_collectives_of_one_replica_give_what_they_got() -> None:
    x, token = torch.arange(4.0).to("xla"), xlac._get_all_reduce_token("")
    alone = [
        xlac._xla_all_reduce("sum", x, 1.0, [], True),
        xlac._xla_all_gather(x, 0, 1, [], True),
        *xlac._xla_all_gather_coalesced([x], token, 0, 1, [], True)[:1],
        xlac._xla_reduce_scatter("sum", x, token, 1.0, 0, 1, [], True)[0],
        xlac._xla_all_to_all(x, token, 0, 0, 1, [], True)[0],
        xlac._xla_collective_permute(x, token, [[0, 0]])[0],
    ]
    assert [tensor.tolist() for tensor in alone] == [[0.0, 1.0, 2.0, 3.0]] * 6
    with pytest.raises(ValueError, match="shard_count is 2"):
        xlac._xla_all_gather(x, 0, 2, [], True)

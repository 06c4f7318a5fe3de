"""A new collective is one file, as CONTRIBUTING says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Start = Callable[..., Any]
CONTRIBUTING = Path(__file__).resolve().parents[4] / "CONTRIBUTING.md"
IMPORTS = """
from collections.abc import Callable
from typing import Any

import jax
import torch
from jax import lax

from xla_core.abi.job import world_size
from xla_core.abi.operators import REPLICA_AXIS, Context
from xla_distributed.collectives.definition import define, shape_of_input
from xla_distributed.collectives.lowering import flatten, in_order
from xla_distributed.collectives.recording import record
from xla_distributed.collectives.threads import gathered
"""


def test_a_file_is_all_that_a_new_collective_takes(start: Start, tmp_path: Path) -> None:
    recipe = CONTRIBUTING.read_text(encoding="utf-8").partition("## A new collective")[2]
    (tmp_path / "ring_shift.py").write_text(IMPORTS + recipe.partition("```py\n")[2].partition("```")[0])
    reports = start("new_collective", 3, tmp_path).reports()
    assert [report["shifted"] for report in reports] == [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]

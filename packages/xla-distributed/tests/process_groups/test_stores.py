"""Process groups by stores of torch's alone, again and again, and the death of a member."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "store_groups.py"
SIZE, KILLED = 3, 2


@pytest.mark.parametrize("named", [{}, {"WORLD_SIZE": str(SIZE)}], ids=["by arguments alone", "size in the environment"])
def test_groups_by_stores_and_the_death_of_a_member(
    named: dict[str, str], launch: Callable[[list[str], dict[str, str]], subprocess.Popen[str]], free_port: int, tmp_path: Path
) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "CPU_NUM_DEVICES"} | named
    environment |= {"PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), str(tmp_path)]
    processes = [launch([*command, str(rank), f"127.0.0.1:{free_port}"], environment) for rank in range(SIZE)]
    errors = [process.communicate(timeout=100)[1] for process in processes]
    assert [process.returncode < 0 for process in processes] == [False, False, True], errors
    for rank in (0, 1):
        assert processes[rank].returncode != 0 and f"replica {KILLED} was lost: its process has died" in errors[rank], errors[rank]
    assert "among [0, 2]" in errors[0], "the group in whose collective it waited"
    for rank in range(SIZE):
        report = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        mine = [[6.0, 6.0], [2.0, 2.0]] if rank == 1 else [[6.0, 6.0], [4.0, 4.0], [4.0, 4.0]]
        place = [0, 1, mine] if rank == 1 else [rank // 2, 2, mine]
        assert [report["0"], report["1"]] == [place, place]
        if rank == 0:
            assert report["meets"]
        if rank == KILLED:
            assert report["received"] == [1]
        if rank != 1:
            kind, text = report["late"]
            # The other one of those that wait may have given up already.
            assert kind == "ReplicaTimeoutError" and re.search(r"ordinals \[([02], )?1(, [02])?\], which did not arrive", text)

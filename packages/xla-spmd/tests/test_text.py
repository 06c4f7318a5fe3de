"""What debuggers read: shardings and barriers in the text of programs, pictures of marked tensors."""

from __future__ import annotations

from typing import Any

ROWS = [["CPU [0, 1]"], ["CPU [2, 3]"], ["CPU [4, 5]"], ["CPU [6, 7]"]]
BOTH = [["CPU 0", "CPU 1"], ["CPU 2", "CPU 3"], ["CPU 4", "CPU 5"], ["CPU 6", "CPU 7"]]
TURNED = [["CPU 0", "CPU 2", "CPU 4", "CPU 6"], ["CPU 1", "CPU 3", "CPU 5", "CPU 7"]]


def shown(lines: list[str]) -> list[str]:
    """The sharding that each line of a program has."""
    return [line.partition("sharding={")[2].partition("}")[0] for line in lines]


def test_programs_show_shardings(report: Any) -> None:
    found = report("text.shardings")
    rows, columns = "devices=[4,1,2]<=[8] last_tile_dim_replicate", "devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate"
    assert shown(found["parameters"]) == [rows, columns, "replicated"]
    assert shown(found["marked"]) == ["devices=[4,2]<=[8]", "devices=[2,4]<=[4,2]T(1,0)"]
    assert shown(found["result"]) == ["devices=[2,4]<=[4,2]T(1,0)"]


def test_programs_show_the_barriers_of_backward_passes(report: Any) -> None:
    assert report("text.barrier") == {"barriers": [0, 3], "same": True}


def test_a_pending_result_becomes_manual(report: Any) -> None:
    found = report("text.manual")
    assert found["kinds"] == [True, True] and found["texts"] == ["{manual}"] * 3
    assert found["same"] == [True, True] and found["values"] == [2080.0, 126.0]


def test_pictures_of_marked_tensors(report: Any) -> None:
    found = report("text.pictures")
    assert found["replicated"] == [["CPU [0, 1, 2, 3, 4, 5, 6, 7]"]]
    assert found["rows"] == ROWS and found["turned"] == TURNED
    assert found["both"] == found["uneven"] == found["several dimensions, two split"] == BOTH
    assert found["one dimension"] == [[f"CPU {number}" for number in range(8)]]

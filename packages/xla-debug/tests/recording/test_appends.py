"""The line that adds to a container, found in the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from xla_debug.recording.appends import appending_line

SOURCE = """
losses = []
losses.append(0)
def train(self):
    losses.append(1)
    for step in range(3):
        if step:
            losses.append(step)
        self.losses.extend([step])
    self.by_name["a"][step].add(step)
    totals += [1]
    kept = kept + [1]
    spread = [*spread, 1]
    slots[step] = 1
    fresh = [other]
    seen.clear()
"""


@pytest.mark.parametrize(
    ("name", "number"),
    [("losses", 8), ("history.losses", 9), ("x.by_name", 10), ("totals", 11), ("kept", 12), ("spread", 13), ("slots", 14)],
)
def test_lines_that_add_are_found_those_in_loops_first(name: str, number: int, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    assert appending_line(name, [str(tmp_path / "none.py"), str(path)]) == f"{path}:{number}"


@pytest.mark.parametrize("name", ["fresh", "seen", "other", "history.totals", "by_name"])
def test_what_does_not_grow_has_no_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    assert appending_line(name, [str(path)]) is None


def test_a_file_that_is_no_python_has_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("losses.append(")
    assert appending_line("losses", [str(path), "", "<ipython-input-1>"]) is None

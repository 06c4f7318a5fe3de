"""Pictures of shardings."""

from __future__ import annotations

import importlib.util
import io
import sys
from typing import Any

import jax
import pytest
import rich.console
import rich.table
import torch

import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.distributed.spmd import debugging
from xla_spmd import debugging as drawing

LINES = """\
┌─────────┬─────────┐
│  CPU 3  │  CPU 1  │
├─────────┼─────────┤
│  CPU 0  │  CPU 2  │
└─────────┴─────────┘
"""
GROUPS = """\
┌──────────────────────┐
│      CPU [0, 2]      │
├──────────────────────┤
│      CPU [1, 3]      │
└──────────────────────┘
"""


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "device_kind", lambda: "CPU")
    monkeypatch.setattr(xr, "global_runtime_device_count", lambda: 4)


def drawn(text: str, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    """What is printed."""
    assert isinstance(xs.debugging.visualize_sharding(text, **options), rich.table.Table)
    return capsys.readouterr().out


def test_a_cell_for_each_tile(capsys: pytest.CaptureFixture[str]) -> None:
    assert drawn("{devices=[2,2]3,1,0,2}", capsys, use_color=False, scale=0.2) == LINES
    assert drawn("{devices=[2,1,2]0,2,1,3 last_tile_dim_replicate}", capsys, use_color=False, scale=0.2, min_width=22) == GROUPS
    one = drawn("{replicated}", capsys, use_color=False)
    assert one.count("CPU [0, 1, 2, 3]") == 1 and one.count("│") == 2 * 10, "ten lines high at scale 1"
    (row,) = [line for line in drawn("{devices=[4]0,1,2,3}", capsys).splitlines() if line.strip()]
    assert row.split() == ["CPU", "0", "CPU", "1", "CPU", "2", "CPU", "3"], "one dimension goes to the right"


def test_dimensions_that_are_not_split_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    for dims in ("2,1,2", "1,2,2", "2,2,1", "1,2,1,2"):
        assert drawn(f"{{devices=[{dims}]3,1,0,2}}", capsys, use_color=False, scale=0.2) == LINES
    one = "{devices=[2,1,1,2]0,2,1,3 last_tile_dim_replicate}"
    assert drawn(one, capsys, use_color=False, scale=0.2, min_width=22) == GROUPS, "the first dimension goes down"


def test_widths_stay_within_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    text = "{devices=[1,16]" + ",".join(map(str, range(16))) + "}"
    for use_color in (True, False):
        lines = drawn(text, capsys, use_color=use_color, max_width=100).splitlines()
        assert max(map(len, lines)) <= 100
    wide = drawn("{devices=[1,2]0,1}", capsys, use_color=False, min_width=20).splitlines()
    assert len(wide[0]) == 2 * 20 + 3
    tall = drawn("{devices=[2,1]0,1}", capsys, use_color=False, scale=2.0).splitlines()
    assert len(tall) == 2 * 10 + 3 and len(tall[0]) == 50 + 2


def test_neighbours_differ_in_color() -> None:
    for rows, columns in [(2, 2), (4, 7), (7, 3)]:
        ids = ",".join(map(str, range(rows * columns)))
        table = xs.debugging.visualize_sharding(f"{{devices=[{rows},{columns}]{ids}}}")
        console = rich.console.Console(file=io.StringIO(), width=80)
        colors = [
            [next(segment.style.bgcolor.name for segment in console.render(cell) if segment.style) for cell in column.cells]
            for column in table.columns
        ]
        for left, right in zip(colors, colors[1:], strict=False):
            assert all(a != b for a, b in zip(left, right, strict=True))
        assert all(a != b for column in colors for a, b in zip(column, column[1:], strict=False))


def test_of_a_tensor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("xla_spmd.debugging.sharding_text", lambda t: "{devices=[2,2]3,1,0,2}")
    table = xs.debugging.visualize_tensor_sharding(torch.ones(2, 2), use_color=False, scale=0.2)
    assert isinstance(table, rich.table.Table) and capsys.readouterr().out == LINES


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no text of a sharding"),
        ("{manual}", "a manual sharding does not say"),
        ("{devices=[2,2,2]0,1,2,3,4,5,6,7}", r"two dimensions, the sharding .* splits 3: \[0, 1, 2\]"),
    ],
)
def test_what_has_no_picture(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        xs.debugging.visualize_sharding(text)


def test_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ValueError, match="pip install rich"):
        xs.debugging.visualize_sharding("{replicated}")


def test_what_pictures_need_is_told() -> None:
    assert debugging.RICH_ENABLED is (importlib.util.find_spec("rich") is not None)
    assert debugging.maybe_get_jax() is jax and debugging.requires_jax(len) is len

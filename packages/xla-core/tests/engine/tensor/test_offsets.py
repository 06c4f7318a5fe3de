"""Slices whose offset changes: an input of the program after its second value, with the results of CPU torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_xla
from xla_core.abi.tensors import alias_key
from xla_core.engine.compile.cache import programs

Tensor = torch.Tensor

READS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "slice": lambda x, i: x[i : i + 3],
    "slice_from_the_end": lambda x, i: x[i - 9 : i - 6],
    "slice_step": lambda x, i: x[:, i : i + 5 : 2],
    "select": lambda x, i: x[i],
    "select_from_the_end": lambda x, i: x[:, -i - 1],
    "narrow": lambda x, i: x.narrow(1, i, 4),
    "both": lambda x, i: x[i + 1 : i + 4][:, 2 * i],
    "split": lambda x, i: x.split(2)[i],
    "unbind": lambda x, i: x.unbind(1)[i],
    "through_a_reshape": lambda x, i: x[2:8].view(3, 2, 12)[:, :, i : i + 2].flatten(1),
    "roll": lambda x, i: x.roll(i + 1, 0),
    "roll_two": lambda x, i: x.roll((i + 1, -2 * i - 1), (0, 1)),
    "roll_all": lambda x, i: x.roll(5 * i + 3),
    "tril": lambda x, i: x.tril(i + 1),
    "triu": lambda x, i: x.triu(-i - 1),
}


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    """No program of another test, and nothing learned from it."""
    programs().clear()


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_changing_offset_compiles_twice(read: Callable[[Tensor, int], Tensor], counts: Any) -> None:
    x = torch.randn(10, 12)
    moved = x.to("xla")
    torch_xla.sync()
    counts.restart()
    for number in (1, 0, 2, 3, 4):
        torch.testing.assert_close((read(moved, number) * 2).cpu(), read(x, number) * 2)
    assert counts.UncachedCompile == 2


WRITES: dict[str, Callable[[Tensor, int], object]] = {
    "slice": lambda x, i: x[i : i + 3].mul_(2),
    "slice_step": lambda x, i: x[:, i : i + 5 : 4].zero_(),
    "select": lambda x, i: x[:, i].add_(1),
    "assign": lambda x, i: x.__setitem__((slice(i, i + 2), 3), torch.arange(2.0, device=x.device)),
    "view_of_view": lambda x, i: x[i : i + 4].t()[2 * i].copy_(torch.ones(4, device=x.device)),
    "through_a_reshape": lambda x, i: x[2:8].view(3, 2, 12)[:, :, i : i + 2].neg_(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_at_a_changing_offset_compile_twice(write: Callable[[Tensor, int], object], counts: Any) -> None:
    x = torch.randn(10, 12)
    moved = x.to("xla")
    torch_xla.sync()
    counts.restart()
    for number in (1, 0, 2, 3, 4):
        write(moved, number)
        write(x, number)
        torch_xla.sync()
    assert counts.UncachedCompile == 2
    torch.testing.assert_close(moved.cpu(), x)


def test_parts_at_places_that_stay_are_compiled_in(counts: Any) -> None:
    """Four slices by the same lines, one of which moves: only that one is an input, and so it is at once for another shape."""
    for rows, moves in ((9, (0, 1)), (7, (2, 3))):
        x = torch.randn(rows, 6).to("xla")
        for move in moves:
            first, second, third = x.split(2, 1)
            (first + second * third + x[move, 0]).cpu()
    assert counts.UncachedCompile == 3
    assert [len(program.varying) for program in programs()._programs.values()] == [1, 1]


def test_gradients_of_slices_at_a_changing_offset_compile_twice(counts: Any) -> None:
    x = torch.randn(10, 12, requires_grad=True)
    moved = x.detach().to("xla").requires_grad_()
    weight = torch.randn(12)
    on_device = weight.to("xla")
    torch_xla.sync()
    counts.restart()
    for number in (1, 0, 2, 3, 4):
        for leaf, factor in ((x, weight), (moved, on_device)):
            leaf.grad = None
            (leaf[number] * leaf[number : number + 5 : 4][1] * factor + leaf[:, -number - 1].sum()).sum().backward()
        torch.testing.assert_close(moved.grad.cpu(), x.grad)  # type: ignore[union-attr]
    assert counts.UncachedCompile == 2


@given(
    size=st.integers(1, 7),
    bounds=st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=5),
    step=st.integers(1, 3),
    dim=st.integers(-2, 1),
)
def test_bounds_are_clamped_as_on_the_cpu(size: int, bounds: list[tuple[int, int]], step: int, dim: int) -> None:
    x = torch.arange(2.0 * size * size).view(2 * size, size)
    moved = x.to("xla")
    for start, end in bounds:
        expected, part = (torch.ops.aten.slice.Tensor(each, dim, start, end, step) for each in (x, moved))
        torch.testing.assert_close((part + 1).cpu(), expected + 1)
        part.mul_(3)
        expected.mul_(3)
        torch.testing.assert_close(moved.cpu(), x)


def test_the_same_part_is_one_view_whatever_the_way_to_it() -> None:
    x = torch.randn(9, 8, 5, device="xla")
    ways = [x[3, 2:6:2, 1], x[..., 1][3][2:6][::2], x[1:8, 1:, :2][2, 1:5:2, 1], x[:, 2:][3, :, 1][:3:2]]
    assert len({alias_key(way) for way in ways}) == 1


@given(moves=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans()), min_size=2, max_size=6))
def test_a_cache_written_at_its_end_and_read_elsewhere(moves: list[tuple[int, int, bool]]) -> None:
    cache, mirror = torch.zeros(6, 4, device="xla"), torch.zeros(6, 4)
    for row, column, synced in moves:
        for each in (cache, mirror):
            each[row] = each[row - 1] + row
            each[:, column] += each[row, column].clone()
            each[row:, column:][0, 0] = 7
        if synced:
            torch_xla.sync()
    torch.testing.assert_close(cache.cpu(), mirror)


@pytest.mark.parametrize("index", [10, -11])
def test_what_is_out_of_range_is_refused_as_on_the_cpu(index: int) -> None:
    x = torch.randn(10, 3)
    for each in (x, x.to("xla")):
        with pytest.raises(IndexError, match="index -?1[01] (is )?out of (range|bounds)"):
            each[index]
        with pytest.raises(RuntimeError, match="start"):
            each.narrow(0, 8, 3)

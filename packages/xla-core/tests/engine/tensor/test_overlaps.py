"""Writes to a part of a tensor from another part of it: what the CPU refuses is refused, all else gives the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_xla

Tensor = torch.Tensor


def outcome(write: Callable[[Tensor], object], device: str, base: Tensor) -> tuple[list[float], str]:
    """The values of the base after a write, and the beginning of what it raised."""
    moved = base.clone().to(device)
    try:
        write(moved)
    except RuntimeError as error:
        return moved.tolist(), str(error)[:60]
    return moved.tolist(), ""


SQUARE = torch.arange(9.0).reshape(3, 3)
REFUSED: dict[str, Callable[[Tensor], object]] = {
    "rows_from_the_rows_before": lambda x: x[1:].copy_(x[:-1]),
    "rows_plus_the_rows_before": lambda x: x[1:].add_(x[:-1]),
    "plus_its_transpose": lambda x: x.add_(x.t()),
    "its_transpose": lambda x: x.copy_(x.t()),
    "times_a_row": lambda x: x.mul_(x[0]),
    "addcmul_of_a_row": lambda x: x.addcmul_(x[0], torch.ones_like(x)),
    "into_a_result_that_overlaps": lambda x: torch.add(x[:-1], 1, out=x[1:]),
    "index_put_of_itself": lambda x: x.index_put_((torch.tensor([0, 1, 2], device=x.device),), x),
    "index_put_at_places_that_are_written_to": lambda x: (i := (x[0] % 3).long()).index_put_((i,), i.clone()),
    "bits_of_its_own_rows": lambda x: x.view(torch.int32)[1:].copy_(x.view(torch.int32)[:-1]),
    "logical_and": lambda x: x[1:].logical_and_(x[:-1]),
}
DONE: dict[str, Callable[[Tensor], object]] = {
    "another_row": lambda x: x[0].copy_(x[1]),
    "plus_another_row": lambda x: x[0].add_(x[1]),
    "every_other_row": lambda x: x[::2].sub_(x[1]),
    "itself": lambda x: x.copy_(x),
    "twice_itself": lambda x: x.add_(x),
    "rows_plus_themselves": lambda x: x[1:].add_(x[1:]),
    "rows_in_place": lambda x: x.__setitem__(slice(1, None), x[1:].mul_(2)),
    "a_column": lambda x: x[:, 0].copy_(x[:, 1]),
    "an_overlap_by_copies": lambda x: x[1:].add_(x[:-1].clone()),
    "into_another_row": lambda x: torch.mul(x[0], 2, out=x[1]),
    "a_threshold_of_elements_that_stand_several_times": lambda x: torch.threshold_(x[:1].expand(3, 3), 1.0, 5.0),
    "an_expanded_gradient_from_itself": lambda x: (y := x[:1].expand(3, 3)).copy_(y),
}


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("name", [*REFUSED, *DONE])
def test_a_write_from_another_part_is_refused_where_the_cpu_refuses_it(name: str, synced: bool) -> None:
    write = {**REFUSED, **DONE}[name]
    expected = outcome(write, "cpu", SQUARE)
    assert bool(expected[1]) == (name in REFUSED)
    if synced:
        torch_xla.sync()
    for _ in range(2):  # the second time it is known
        assert outcome(write, "xla", SQUARE) == expected


def test_a_refused_write_leaves_no_trace() -> None:
    x = SQUARE.clone().to("xla")
    version = x._version
    with pytest.raises(RuntimeError, match="single memory location"):
        x[1:].add_(x[:-1])
    assert x._version == version
    assert (x[1:] + x[:-1]).tolist() == (SQUARE[1:] + SQUARE[:-1]).tolist()


IN_TURN: dict[str, Callable[[Tensor], object]] = {
    "twice": lambda x: torch._foreach_add_([x, x], 1),
    "a_row_and_all": lambda x: torch._foreach_mul_([x[0], x], 2.0),
    "all_and_another_name": lambda x: torch._foreach_mul_([x, x.detach(), x[1:]], 3.0),
    "rows_of_rows": lambda x: torch._foreach_add_([x[0], x[1], x[0]], [x[1], x[2], x[0]], alpha=2),
    "three_lists": lambda x: torch._foreach_addcmul_([x[0], x[:1]], [x[1], x[1:2]], [x[2], x[2:]], value=0.5),
    "numbers": lambda x: torch._foreach_add_([x[0], x[0]], [1.0, 2.0]),
    "one_list": lambda x: torch._foreach_neg_([x, x]),
}


@pytest.mark.parametrize("name", IN_TURN)
def test_a_list_that_has_a_tensor_twice_is_worked_off_in_turn(name: str) -> None:
    assert outcome(IN_TURN[name], "xla", SQUARE) == outcome(IN_TURN[name], "cpu", SQUARE)


@pytest.mark.parametrize("name", ["logical_and_", "add_", "lerp_"])
def test_a_parameter_overlaps_its_views(name: str) -> None:
    for device in ("cpu", "xla"):
        parameter = torch.nn.Parameter(torch.arange(4.0).to(device))
        with torch.no_grad(), pytest.raises(RuntimeError, match="refer to a single memory location"):
            getattr(parameter.view(1, 4), name)(parameter, *([0.5] if name == "lerp_" else []))


def test_a_part_assigned_from_a_part_that_crosses_it_is_read_before_it_is_written() -> None:
    x = torch.arange(4.0).reshape(2, 2)
    on_device = x.to("xla")
    on_device[:, 1] = on_device[0]
    x[:, 1] = x[0].clone()
    assert torch.equal(on_device.cpu(), x)


def test_bytes_of_booleans_are_0_or_1() -> None:
    mask = torch.tensor([True, False, False, False]).to("xla")
    mask.view(torch.int32).fill_(3 + (1 << 8))
    assert mask.cpu().view(torch.uint8).tolist() == [1, 1, 0, 0]

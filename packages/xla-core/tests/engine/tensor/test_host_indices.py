"""Indices and masks on the CPU for tensors on the device: advanced indexing and other operations, beside the same on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import torch_xla.debug.metrics as met
from torch_xla import experimental

ROWS = torch.tensor([2, 0, -1])
MASK = torch.tensor([True, False, True])
FULL = torch.arange(12).view(3, 4) % 3 == 0

READS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x[ROWS],
    "int32": lambda x: x[ROWS.int()],
    "columns": lambda x: x[:, torch.tensor([[0, 3], [1, 1]])],
    "pairs": lambda x: x[ROWS, torch.tensor([1, 1, 3])],
    "mask": lambda x: x[MASK],
    "mask of bytes": lambda x: x[MASK.to(torch.uint8)],
    "full mask": lambda x: x[FULL],
    "mask of columns": lambda x: x[:, torch.tensor([True, False, False, True])],
    "mask and positions": lambda x: x[MASK, torch.tensor([3, 0])],
    "both masks": lambda x: x[MASK, torch.tensor([True, False, True, False])],
    "nothing": lambda x: x[torch.tensor([], dtype=torch.int64)],
    "an empty mask": lambda x: x[torch.zeros(3, dtype=torch.bool)],
    "a number": lambda x: x[torch.tensor(1)],
    "a 0-d mask": lambda x: x[torch.tensor(True)],
    "host and device": lambda x: x[ROWS, torch.tensor([1, 1, 3]).to(x.device)],
    "device and host": lambda x: x[ROWS.to(x.device), torch.tensor([1, 1, 3])],
    "of a view": lambda x: x.t()[torch.tensor([3, 0])],
    "numpy": lambda x: x[ROWS.numpy()],
    "list": lambda x: x[[2, 0]],
    "index": lambda x: torch.ops.aten.index(x, [None, torch.tensor([0, 1])]),
    "unsafe": lambda x: torch.ops.aten._unsafe_index(x, [ROWS]),
    "permutation": lambda x: x[torch.randperm(3, generator=torch.Generator().manual_seed(0))],
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("name", READS)
def test_reads_and_their_gradients(name: str) -> None:
    values = torch.arange(12.0).view(3, 4)
    mine, theirs = values.to("xla").requires_grad_(), values.clone().requires_grad_()
    found, wanted = READS[name](mine), READS[name](theirs)
    assert found.device.type == "xla"
    torch.testing.assert_close(found.detach().cpu(), wanted.detach())
    (found * 2).sum().backward()
    (wanted * 2).sum().backward()
    assert mine.grad is not None
    torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "rows": lambda x: x.__setitem__(ROWS, 7.0),
    "mask": lambda x: x.__setitem__(MASK, torch.zeros(4, device=x.device)),
    "full mask": lambda x: x.__setitem__(FULL, torch.arange(4.0, device=x.device)),
    "full mask of one number": lambda x: x.__setitem__(FULL, -1.0),
    "pairs": lambda x: x.__setitem__((ROWS, torch.tensor([1, 1, 3])), torch.tensor([1.0, 2.0, 3.0], device=x.device)),
    "added": lambda x: x.index_put_((torch.tensor([0, 0, 2]),), torch.ones(4, device=x.device), accumulate=True),
    "mask and positions": lambda x: x.__setitem__((MASK, torch.tensor([3, 0])), 5.0),
    "in place": lambda x: x[ROWS].add_(1),
    "added in place": lambda x: x.__setitem__(ROWS, x[ROWS] + 1),
    "through a view": lambda x: x.t().__setitem__(torch.tensor([3, 0]), 1.0),
    "functional": lambda x: x.copy_(torch.index_put(x, (ROWS,), torch.tensor(2.0, device=x.device))),
    "a number on the CPU": lambda x: x.index_put_((ROWS,), torch.tensor(2.0)),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes(name: str) -> None:
    mine, theirs = torch.arange(12.0, device="xla").view(3, 4), torch.arange(12.0).view(3, 4)
    WRITES[name](mine), WRITES[name](theirs)
    torch.testing.assert_close(mine.cpu(), theirs)


WRONG = {
    "past": torch.tensor([3]),
    "before": torch.tensor([0, -4]),
    "column": (slice(None), torch.tensor([4])),
    "mask": torch.tensor([True, False]),
    "masks": torch.ones(2, 4, dtype=torch.bool),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_raises_as_on_the_cpu(name: str) -> None:
    index: Any = WRONG[name]
    for x in (torch.zeros(3, 4), torch.zeros(3, 4, device="xla")):
        with pytest.raises(IndexError) as raised:
            x[index]
        with pytest.raises(IndexError):
            x[index] = 1.0
        if x.device.type == "cpu":
            wanted = str(raised.value)
    assert str(raised.value) == wanted


def test_tensors_on_the_cpu_take_no_indices_on_the_device() -> None:
    with pytest.raises(RuntimeError):
        torch.zeros(3)[torch.tensor([0], device="xla")]


PLACES = torch.tensor([[0, 1, 2, 0], [2, 1, 0, 0], [1, 1, 1, 1]])


def counted(x: Tensor, *shape: int) -> Tensor:
    """1, 2, 3 … in a shape, where `x` is."""
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape).to(x.device)


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "index_select": lambda x: x.index_select(0, ROWS % 3),
    "index_select by int32": lambda x: x.index_select(1, (ROWS % 3).int()),
    "index_select by a number": lambda x: x.index_select(0, torch.tensor(1)),
    "index_add": lambda x: x.index_add(0, ROWS % 3, counted(x, 3, 4), alpha=2),
    "index_add_": lambda x: x.clone().index_add_(0, ROWS % 3, counted(x, 3, 4)),
    "index_copy": lambda x: x.index_copy(0, MASK.nonzero()[:, 0], counted(x, 2, 4)),
    "index_fill": lambda x: x.index_fill(0, ROWS[:2], 3.0),
    "index_fill_ of a view": lambda x: x.clone().t().index_fill_(1, ROWS[:1], torch.tensor(3.0, device=x.device)),
    "index_reduce": lambda x: x.detach().index_reduce(0, ROWS % 3, counted(x, 3, 4), "prod") * x,
    "gather": lambda x: x.gather(0, PLACES),
    "gather by name": lambda x: torch.gather(input=x, dim=0, index=PLACES),
    "scatter": lambda x: x.scatter(0, PLACES[:1], counted(x, 1, 4)),
    "scatter a number": lambda x: x.scatter(0, PLACES, 3.0),
    "scatter_": lambda x: x.detach().clone().scatter_(0, PLACES, 2.0, reduce="add") * x,
    "scatter_add": lambda x: x.scatter_add(0, PLACES, counted(x, 3, 4)),
    "scatter_reduce": lambda x: x.scatter_reduce(0, PLACES, counted(x, 3, 4), "sum"),
    "take": lambda x: x.take(ROWS),
    "put": lambda x: x.put(ROWS, counted(x, 3)),
    "masked_fill": lambda x: x.masked_fill(FULL, 2.0),
    "masked_fill_": lambda x: x.clone().masked_fill_(FULL[:1], 2.0),
    "masked_select": lambda x: x.masked_select(FULL),
    "masked_select, broadcast": lambda x: x.masked_select(MASK[:, None]),
    "masked_scatter": lambda x: x.masked_scatter(FULL, counted(x, 12)),
    "embedding": lambda x: torch.nn.functional.embedding(ROWS[:2], x, padding_idx=0),
    "embedding_bag": lambda x: torch.nn.functional.embedding_bag(ROWS % 3, x, torch.tensor([0, 2])),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", OTHERS)
def test_other_operations_and_their_gradients(name: str) -> None:
    values = torch.arange(1.0, 13.0).view(3, 4)
    mine, theirs = values.to("xla").requires_grad_(), values.clone().requires_grad_()
    found, wanted = OTHERS[name](mine), OTHERS[name](theirs)
    assert found.device.type == "xla"
    torch.testing.assert_close(found.detach().cpu(), wanted.detach())
    (found * 2).sum().backward()
    (wanted * 2).sum().backward()
    assert mine.grad is not None
    torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


def test_other_operations_on_parameters_and_in_eager_mode() -> None:
    layer = torch.nn.Embedding(4, 3)
    theirs = layer(ROWS[:2])
    layer.to("xla")
    torch.testing.assert_close(layer(ROWS[:2]).detach().cpu(), theirs.detach())
    weight = torch.nn.Parameter(torch.ones(3, 4)).to("xla")
    with torch.no_grad(), experimental.eager_mode_context(True):
        torch.testing.assert_close(weight.index_select(0, ROWS[:1]).cpu(), torch.ones(1, 4))
        found = torch.empty(1, 4, device="xla")
        torch.index_select(weight, 0, ROWS[:1], out=found)
        torch.testing.assert_close(found.cpu(), torch.ones(1, 4))


ELSEWHERE: dict[str, Callable[[Tensor], Tensor]] = {
    "added": lambda x: x.index_add(0, ROWS[:1], torch.ones(1, 4)),
    "scattered": lambda x: x.scatter(0, PLACES.to("xla"), torch.ones(3, 4)),
    "masked": lambda x: x.masked_scatter(FULL, torch.ones(12)),
    "no index by its dtype": lambda x: x.gather(0, torch.ones(3, 4)),
    "indexed": lambda x: torch.ones(3, 4).index_select(0, ROWS.to("xla")),
    "no index": lambda x: x + torch.ones(3, 4),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_values_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="not an XLA tensor"):
        ELSEWHERE[name](torch.ones(3, 4, device="xla"))


def test_what_is_wrong_with_the_index_is_said_as_for_one_on_the_device() -> None:
    x = torch.ones(3, 4, device="xla")
    with pytest.raises(IndexError, match="out of range"):
        x.gather(5, PLACES)
    with pytest.raises(IndexError, match="out of range"):
        x.index_select(0, torch.tensor([7])).cpu()


def test_another_permutation_is_no_other_program_and_reads_nothing() -> None:
    x = torch.arange(5.0).to("xla")
    x[torch.randperm(5)].cpu()
    compiles, reads = met.metric_data("CompileTime")[0], met.counter_value("aten::_local_scalar_dense") or 0
    for _ in range(3):
        x[torch.randperm(5)].cpu()
    x[torch.tensor([True, False, True, True, False])]
    assert met.metric_data("CompileTime")[0] == compiles and (met.counter_value("aten::_local_scalar_dense") or 0) == reads


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_index(data: st.DataObject) -> None:
    x = torch.arange(60.0).view(3, 4, 5)
    places: list[Any] = []
    count = data.draw(st.integers(1, 3))
    length = data.draw(st.integers(1, 4))
    for dim in range(count):
        kind = data.draw(st.sampled_from(["all", "host", "device", "slice"]))
        if kind == "all":
            places.append((slice(None), slice(None)))
        elif kind == "slice":
            places.append((slice(1, None), slice(1, None)))
        else:
            index = torch.tensor(data.draw(st.lists(st.integers(-x.shape[dim], x.shape[dim] - 1), min_size=length, max_size=length)))
            places.append((index, index if kind == "host" else index.to("xla")))
    theirs, mine = tuple(one for one, _ in places), tuple(one for _, one in places)
    torch.testing.assert_close(x.to("xla")[mine].cpu(), x[theirs])
    written, wanted = x.to("xla"), x.clone()
    written[mine], wanted[theirs] = 3.0, 3.0
    torch.testing.assert_close(written.cpu(), wanted)


@pytest.mark.parametrize(
    "use",
    [
        lambda x, mask: x[mask],
        lambda x, mask: x[mask, mask],
        lambda x, mask: x.index_put((mask,), torch.zeros(2, 3).to(x.device)),
        lambda x, mask: x.__setitem__(mask, x[mask]),
    ],
    ids=["read", "read by two", "index_put", "assignment"],
)
@pytest.mark.parametrize("where", ["cpu", "xla"])
def test_masks_of_bytes_warn_at_each_call(use: Callable[[Tensor, Tensor], object], where: str) -> None:
    counts = []
    for device, mask_at in (("cpu", "cpu"), ("xla", where)):
        x, mask = torch.ones(3, 3, device=device), torch.tensor([1, 0, 1], dtype=torch.uint8, device=mask_at)
        for _ in range(2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                use(x, mask)
            assert all(each.filename == __file__ for each in caught)
            counts.append([str(each.message).partition(" (")[0] for each in caught])
    assert counts[0] and all(each == counts[0] for each in counts)

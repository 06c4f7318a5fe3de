"""Results whose shape depends on data: right, counted, one partial execution, no part on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

import torch_xla
from xla_core.base import metrics
from xla_core.engine.tensor.values import CUT_BYTES

Tensor = torch.Tensor
Counts = Any
DTYPES = (torch.float32, torch.int64, torch.bool, torch.uint8, torch.bfloat16)


def agree(use: Callable[..., Any], *args: Any) -> None:
    """`use` gives on xla what it gives on the CPU, and nothing ran there."""
    expected = tree_leaves(use(*args))
    seen: list[metrics.FallbackEvent] = []
    stop = metrics.subscribe(seen.append, metrics.FallbackEvent)
    try:
        got = tree_leaves(use(*[arg.to("xla") if isinstance(arg, Tensor) else arg for arg in args]))
    finally:
        stop()
    assert not seen
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.device.type == "xla"
        torch.testing.assert_close(mine.cpu(), theirs, equal_nan=True)


@st.composite
def tensors(draw: st.DrawFn, least: int = 0) -> Tensor:
    """Small whole numbers, so that they repeat, in any shape of up to three dimensions."""
    shape = draw(st.lists(st.integers(0, 4), min_size=least, max_size=3))
    seed, dtype = draw(st.integers(0, 99)), draw(st.sampled_from(DTYPES))
    return torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(tensors())
def test_nonzero(x: Tensor) -> None:
    agree(torch.nonzero, x)
    agree(lambda x: x.nonzero(as_tuple=True), x)


@given(tensors(), st.booleans())
def test_masks_read(x: Tensor, chain: bool) -> None:
    agree(lambda x: x.masked_select(x > 0), x)
    agree(lambda x: x[x > 0], x)
    if chain:
        agree(lambda x: (x[x > 0].float() + 1).sum(), x)


@given(tensors(least=2), st.data())
def test_masks_of_some_dimensions_read(x: Tensor, data: st.DataObject) -> None:
    dim = data.draw(st.integers(0, x.dim() - 1))
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=x.shape[dim], max_size=x.shape[dim])), dtype=torch.bool)
    before: tuple[Any, ...] = (slice(None),) * dim
    agree(lambda x, mask: x[(*before, mask)], x, mask)
    agree(lambda x, mask: x[(*before, mask)] * 2 if x.dtype is not torch.bool else x[(*before, mask)], x, mask)
    other = 1 - dim if x.dim() == 2 else (dim + 1) % 3
    if x.shape[other]:
        places: list[Any] = [slice(None)] * x.dim()
        places[dim], places[other] = mask, torch.tensor([0])
        agree(
            lambda x, mask, place: x[tuple(mask if p is places[dim] else place if p is places[other] else p for p in places)],
            x,
            mask,
            places[other],
        )


@given(tensors(), st.booleans(), st.booleans())
def test_unique(x: Tensor, inverse: bool, counts: bool) -> None:
    agree(lambda x: torch.unique(x, return_inverse=inverse, return_counts=counts), x)
    agree(lambda x: torch.unique_consecutive(x, return_inverse=inverse, return_counts=counts), x)


@given(tensors(least=1), st.integers(-3, 2), st.booleans(), st.booleans())
def test_unique_along_a_dimension(x: Tensor, dim: int, inverse: bool, counts: bool) -> None:
    if not -x.dim() <= dim < x.dim() or not x.numel() or x.dtype is torch.bfloat16:  # the CPU's has no bfloat16
        return
    agree(lambda x: torch.unique(x, dim=dim, return_inverse=inverse, return_counts=counts), x)
    agree(lambda x: torch.unique_consecutive(x, dim=dim, return_inverse=inverse, return_counts=counts), x)


def test_unique_keeps_every_nan() -> None:
    agree(torch.unique, torch.tensor([float("nan"), 1.0, float("nan"), 0.0, float("-inf")]))


@pytest.mark.parametrize("weights", [None, torch.float32, torch.float64, torch.int32], ids=str)
def test_bincount(weights: torch.dtype | None) -> None:
    x = torch.tensor([1, 4, 1, 0, 2], dtype=torch.int32)
    w = None if weights is None else torch.arange(5).to(weights)
    for least in (0, 3, 9):
        agree(torch.bincount, x, w, least)
        agree(torch.bincount, x[:0], w if w is None else w[:0], least)


def test_repeat_interleave() -> None:
    x = torch.arange(6.0).view(3, 2)
    for counts in ([2, 0, 1], [0, 0, 0], [1, 1, 1]):
        agree(lambda x, counts: torch.repeat_interleave(x, counts, dim=0), x, torch.tensor(counts))
    agree(torch.repeat_interleave, torch.empty(0, dtype=torch.int64))


def test_combinations_and_argwhere() -> None:
    agree(lambda x: torch.combinations(x, 3), torch.arange(5.0))
    agree(lambda x: torch.combinations(x, 2, with_replacement=True), torch.arange(4))
    agree(torch.argwhere, torch.eye(3))


WRONG: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "mask of another shape": (lambda x, m: x[m], (torch.ones(3, 2), torch.ones(2, dtype=torch.bool))),
    "mask of too many dimensions": (lambda x, m: x[m], (torch.ones(3), torch.ones(3, 1, dtype=torch.bool))),
    "indices that do not broadcast": (
        lambda x, m: x[m, m.new_zeros(2, dtype=torch.int64)],
        (torch.ones(3, 3), torch.ones(3, dtype=torch.bool)),
    ),
    "mask of numbers": (torch.masked_select, (torch.ones(3), torch.ones(3))),
    "counting floats": (torch.bincount, (torch.ones(3),)),
    "counting a matrix": (torch.bincount, (torch.ones(3, 1, dtype=torch.int64),)),
    "counting below zero": (torch.bincount, (torch.tensor([1, -1]),)),
    "other weights": (torch.bincount, (torch.tensor([1, 1]), torch.ones(3))),
    "repeats below zero": (torch.repeat_interleave, (torch.tensor([1, -1]),)),
    "slices of nothing": (lambda x: torch.unique(x, dim=0), (torch.ones(2, 0),)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_the_cpu_refuses_is_refused_with_the_same_error(name: str) -> None:
    use, args = WRONG[name]
    with pytest.raises(Exception) as theirs:
        use(*args)
    with pytest.raises(theirs.type) as mine:
        use(*[arg.to("xla") for arg in args])
    assert mine.type is theirs.type
    if name != "counting floats":  # the CPU names its kernel
        assert str(mine.value).startswith(str(theirs.value)[:25])


READS: dict[str, Callable[[Tensor], Any]] = {
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 1),
    "mask": lambda x: x[x > 1],
    "unique": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "unique_dim": lambda x: torch.unique(x.view(2, 2), dim=0),
    "bincount": lambda x: torch.bincount(x.long()),
}


@pytest.mark.parametrize("name", READS)
def test_one_partial_execution(name: str, counts: Counts) -> None:
    x, other = torch.tensor([0.0, 1.0, 2.0, 3.0], device="xla") + 1, torch.ones(2, device="xla") + 5
    result = READS[name](x)
    assert counts.ExecuteComputation == 1 and counts.MarkStep == 0
    shapes = [tuple(leaf.shape) for leaf in tree_leaves(result)]
    assert counts.ExecuteComputation == 1, "shapes are known"
    assert x.tolist() == [1, 2, 3, 4] and counts.ExecuteComputation == 1, "the input was computed on the way"
    assert other.tolist() == [6, 6] and shapes


def test_counted_by_name(counts: Counts) -> None:
    x = torch.tensor([0.0, 3.0], device="xla")
    x.nonzero(), x[x > 0], x.unique()
    assert [counts[f"xla::{name}"] for name in ("nonzero", "index", "_unique2")] == [1, 1, 1]
    assert counts["aten::nonzero"] == counts["aten::index.Tensor"] == 0


def test_another_number_found_is_read_without_another_program(counts: Counts) -> None:
    for number in range(5):
        x = torch.tensor([1.0] * number + [0.0] * (5 - number)).to("xla")
        assert x.nonzero().view(-1).tolist() == list(range(number))
        assert x[x > 0].tolist() == [1.0] * number
    assert counts.UncachedCompile <= 2


def test_a_large_part_does_not_keep_the_whole_alive() -> None:
    x = torch.zeros(CUT_BYTES, device="xla")
    x[7] = 2.0
    found = x[x > 0]
    torch_xla.sync()
    assert found.tolist() == [2.0]
    assert found._storage.value.aval.nbytes == 4  # type: ignore[attr-defined]


def test_a_part_is_written_to_alone() -> None:
    x = torch.tensor([1.0, 0.0, 3.0], device="xla")
    found = x[x > 0]
    found += 1
    assert (found.tolist(), x.tolist()) == ([2.0, 4.0], [1.0, 0.0, 3.0])


def test_gradients_flow_through_masks_without_another_read(counts: Counts) -> None:
    x = torch.tensor([1.0, -2.0, 3.0], device="xla", requires_grad=True)
    (x[x > 0] ** 2).sum().backward()
    assert counts.ExecuteComputation == 1
    assert x.grad is not None
    assert x.grad.tolist() == [2, 0, 6]


def test_without_a_warning() -> None:
    x = torch.tensor([[0.0, 1.0], [2.0, 3.0]]).to("xla")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert x[(x > 1).any(1), 1:].tolist() == [[3.0]]
        assert [each.tolist() for each in torch.where(x > 1)] == [[1, 1], [0, 1]]


def test_a_mask_of_bytes_is_deprecated_as_in_torch() -> None:
    x = torch.arange(3.0, device="xla")
    with pytest.warns(UserWarning, match="torch.uint8"):
        assert x[torch.tensor([1, 0, 1], dtype=torch.uint8, device="xla")].tolist() == [0.0, 2.0]


@pytest.mark.parametrize("held", [0, 2, 5])
@pytest.mark.parametrize(
    "call",
    [
        lambda x, out: torch.nonzero(x, out=out.long().view(-1, 1)),
        lambda x, out: torch.masked_select(x, x > 1, out=out),
        lambda x, out: torch.normal(x, torch.zeros_like(x), out=out),
        lambda x, out: torch.normal(x, 0.0, out=out) if out.numel() == x.numel() else torch.normal(2.0, torch.zeros_like(x), out=out),
    ],
    ids=["nonzero", "masked_select", "normal", "normal by a number"],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized", "ignore:.* runs on the CPU")
def test_out_is_resized(call: Callable[[Tensor, Tensor], Tensor], held: int) -> None:
    results = []
    for device in ("cpu", "xla"):
        x, out = torch.tensor([0.0, 3.0, 2.0, 1.0], device=device), torch.full((held,), 7.0, device=device)
        results.append(call(x, out).cpu())
    assert results[0].equal(results[1])


@pytest.mark.parametrize("shape", [(), (0,)])
def test_out_elsewhere_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="on the same device, but out is on cpu and an input on xla:0|Input tensor is not an XLA tensor"):
        torch.nonzero(torch.ones(3, device="xla"), out=torch.empty(shape, dtype=torch.int64))

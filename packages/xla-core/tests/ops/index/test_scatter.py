"""Writes at computed positions against CPU torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import xla_core.ops.index.scatter  # noqa: F401 - registers the family
from xla_core.testing.lowering import check_lowering, lower_once

A = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
# torch rounds every half-precision sum on its way, the device only the last
ROUNDED_OFTEN = {"rtol": 0.03, "atol": 0.03}
NUMBERS = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.testing.make_tensor(shape, dtype=dtype, device="cpu", low=-4 if dtype.is_signed else 0, high=5)


def positions(x: torch.Tensor, dim: int, *shape: int) -> torch.Tensor:
    """Random places along `dim`, some of them twice."""
    return torch.randint(0, x.shape[dim], shape)


def distinct(x: torch.Tensor, dim: int, *shape: int) -> torch.Tensor:
    """Random places along `dim`, none twice."""
    return torch.rand_like(x, dtype=torch.float32).argsort(dim)[tuple(slice(size) for size in shape)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scatter(dtype: torch.dtype) -> None:
    x, src = values(dtype, 4, 5, 3), values(dtype, 4, 6, 5)
    for dim in (0, 1, -1):
        check_lowering(A.scatter.src, x, dim, distinct(x, dim, 3, 4, 2), src)
        check_lowering(A.scatter.value, x, dim, distinct(x, dim, 4, 5, 3), 1)
    check_lowering(A.scatter_add.default, x, 1, positions(x, 1, 4, 5, 3), src)
    check_lowering(A.scatter_add.default, x, -1, positions(x, -1, 2, 3, 5), src)
    check_lowering(A.scatter.src, x, 1, torch.empty(4, 0, 3, dtype=torch.int64), src)
    check_lowering(A.scatter_add.default, values(dtype), 0, torch.tensor([0]), values(dtype, 1))
    check_lowering(A.scatter.src, values(dtype), 0, torch.tensor(0), values(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_with_reduction(dtype: torch.dtype, reduce: str) -> None:
    x = values(dtype, 4, 5)
    check_lowering(A.scatter.reduce, x, 0, positions(x, 0, 6, 5), values(dtype, 6, 5), reduce=reduce)
    check_lowering(A.scatter.value_reduce, x, 1, positions(x, 1, 4, 7), 3, reduce=reduce)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_reductions(dtype: torch.dtype, reduce: str, include_self: bool) -> None:
    x, src = values(dtype, 5, 4), values(dtype, 8, 4)
    check_lowering(A.scatter_reduce.two, x, 0, positions(x, 0, 7, 3), src, reduce, include_self=include_self)
    if reduce != "sum":
        check_lowering(A.index_reduce.default, x, 0, positions(x, 0, 8), src, reduce, include_self=include_self)
        check_lowering(A.index_reduce.default, x.t().contiguous(), -1, positions(x, 0, 8), src.t(), reduce, include_self=include_self)


@pytest.mark.parametrize("include_self", [True, False])
def test_reductions_of_complex_numbers(include_self: bool) -> None:
    x, src = values(torch.complex64, 5, 4), values(torch.complex64, 8, 4)
    for reduce in ("sum", "prod", "mean"):
        check_lowering(A.scatter_reduce.two, x, 0, positions(x, 0, 7, 3), src, reduce, include_self=include_self)
        if reduce != "sum" and include_self:  # what the CPU has
            check_lowering(A.index_reduce.default, x, 0, positions(x, 0, 8), src, reduce)


def test_reductions_let_nan_win() -> None:
    x, src = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([float("nan"), 5.0, -1.0, 7.0])
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        check_lowering(A.scatter_reduce.two, x, 0, torch.tensor([0, 0, 2, 2]), src, reduce, include_self=False)
    check_lowering(A.scatter_reduce.two, x, 0, torch.empty(0, dtype=torch.int64), src, "mean", include_self=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_whole_slices(dtype: torch.dtype) -> None:
    x = values(dtype, 4, 5, 3)
    for dim in (0, 1, -1):
        source = values(dtype, *(2 if d == dim % 3 else size for d, size in enumerate(x.shape)))
        check_lowering(A.index_add.default, x, dim, torch.tensor([1, 1]), source)
        check_lowering(A.index_copy.default, x, dim, torch.tensor([2, 0]), source)
        check_lowering(A.index_fill.int_Scalar, x, dim, torch.tensor([-1, 0]), 1)
    check_lowering(A.index_fill.int_Tensor, x, 1, torch.tensor(2), torch.tensor(1, dtype=dtype))
    check_lowering(A.index_add.default, values(dtype), 0, torch.tensor([0]), values(dtype))
    check_lowering(A.index_copy.default, values(dtype, 3), 0, torch.tensor(1), values(dtype))
    check_lowering(A.index_fill.int_Scalar, values(dtype), 0, torch.tensor([0]), 1)
    check_lowering(A.index_fill.int_Scalar, x, 0, torch.empty(0, dtype=torch.int64), 1)


def test_index_add_with_alpha() -> None:
    for dtype, alpha in ((torch.float32, 2.5), (torch.int64, -3), (torch.complex64, 1 + 2j), (torch.bfloat16, 0.5)):
        check_lowering(A.index_add.default, values(dtype, 3, 2), 0, torch.tensor([0, 2]), values(dtype, 2, 2), alpha=alpha)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_put(dtype: torch.dtype) -> None:
    x = values(dtype, 3, 4)
    check_lowering(A.put.default, x, torch.tensor([[0, -1], [5, 6]]), values(dtype, 2, 2))
    check_lowering(A.put.default, x, torch.tensor([3, 3, -9]), values(dtype, 3), True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("by_frequency", [False, True])
def test_embedding_gradient(dtype: torch.dtype, by_frequency: bool) -> None:
    indices = torch.tensor([[0, 2, 2], [5, 1, 2]])
    tolerance = ROUNDED_OFTEN if dtype is torch.bfloat16 else {}
    for padding in (-1, 2):
        check_lowering(A.embedding_dense_backward.default, values(dtype, 2, 3, 4), indices, 6, padding, by_frequency, **tolerance)
    check_lowering(A.embedding_dense_backward.default, values(dtype, 4), torch.tensor(3), 6, -1, by_frequency)
    check_lowering(A.embedding_dense_backward.default, values(dtype, 0, 4), indices[0, :0], 6, -1, by_frequency)


def test_out_of_range_writes_are_dropped() -> None:
    x = torch.zeros(3)
    for place in (7, -1):
        got = lower_once(A.index_add.default, x, x, 0, torch.tensor([1, place]), torch.ones(2))[0]
        torch.testing.assert_close(got, torch.tensor([0.0, 1.0, 0.0]))


KINDS = ("sum", "prod", "mean", "amax", "amin")
HALF: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "put": lambda x, index, source: x.put(index, source, accumulate=True),
    "index_put": lambda x, index, source: x.index_put((index,), source, accumulate=True),
    "index_add": lambda x, index, source: x.index_add(0, index, source),
    "index_add_alpha": lambda x, index, source: x.index_add(0, index, source, alpha=0.3),
    "index_add_alpha_of_one": lambda x, index, source: x.index_add(0, index, source, alpha=1),
    "index_add_two": lambda x, index, source: x.index_add(0, index, source, alpha=2),
    "index_add_first": lambda x, index, source: rows(x).index_add(0, index, rows(source)),
    "index_add_last": lambda x, index, source: rows(x).t().index_add(1, index, rows(source).t()),
    "index_add_middle": lambda x, index, source: rows(x)[None].index_add(1, index, rows(source)[None]),
    "index_add_first_alpha": lambda x, index, source: rows(x).index_add(0, index, rows(source), alpha=0.3),
    "index_select_gradient": lambda x, index, source: torch.autograd.grad(x.requires_grad_().index_select(0, index), x, source)[0],
    "index_gradient": lambda x, index, source: torch.autograd.grad(x.requires_grad_()[index], x, source)[0],
    "gather_gradient": lambda x, index, source: torch.autograd.grad(x.requires_grad_().gather(0, index), x, source)[0],
    "scatter_add": lambda x, index, source: x.scatter_add(0, index, source),
    "scatter_by_adding": lambda x, index, source: x.scatter(0, index, source, reduce="add"),
    "scatter_by_multiplying": lambda x, index, source: x.scatter(0, index, source, reduce="multiply"),
    "scatter_number_by_adding": lambda x, index, source: x.scatter(0, index, 0.3, reduce="add"),
    "scatter_number_by_multiplying": lambda x, index, source: x.scatter(0, index, 1.3, reduce="multiply"),
    **{f"scatter_reduce_{kind}": partial(lambda kind, x, index, source: x.scatter_reduce(0, index, source, kind), kind) for kind in KINDS},
    **{f"index_reduce_{kind}": partial(lambda kind, x, index, source: x.index_reduce(0, index, source, kind), kind) for kind in KINDS[1:]},
    "scatter_mean_of_others": lambda x, index, source: x.scatter_reduce(0, index, source, "mean", include_self=False),
    "embedding_bag_mean": lambda x, index, source: nn.functional.embedding_bag(index[None], rows(x), mode="mean"),
    "embedding_bag_sum_gradient": lambda x, index, source: bag_gradient(x, index, source, None, "sum"),
    "embedding_bag_mean_gradient": lambda x, index, source: bag_gradient(x, index, source, None, "mean"),
    "embedding_bag_weighted_gradient": lambda x, index, source: bag_gradient(x, index, source, source.reshape(3, 4), "sum"),
}


def bag_gradient(x: Tensor, index: Tensor, source: Tensor, weights: Tensor | None, mode: str) -> Tensor:
    table = rows(x).requires_grad_()
    result = nn.functional.embedding_bag(index.reshape(3, 4), table, per_sample_weights=weights, mode=mode)
    return torch.autograd.grad(result, table, rows(source)[:3])[0]


def rows(x: Tensor) -> Tensor:
    return x[:, None].expand(-1, 3).contiguous()


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter", "ignore:index_reduce")
@pytest.mark.parametrize("write", HALF.values(), ids=HALF)
def test_half_precision_is_rounded_where_torch_rounds_it(write: Callable[..., Tensor]) -> None:
    """Bit by bit: some of these operations round after each addition, others once."""
    torch.manual_seed(0)
    x, index, source = torch.randn(50, 5).half(), torch.randint(0, 5, (50, 12)), torch.randn(50, 12).half()
    for arguments in zip(x, index, source, strict=True):
        ours = write(*[argument.to("xla") for argument in arguments])
        assert torch.equal(ours.cpu(), write(*arguments))

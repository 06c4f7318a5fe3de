"""What other systems got wrong, one case each: results of the device against CPU torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

INF = float("inf")
Case = Callable[[Any], Any]  # gets a function that puts a CPU tensor on the device


def numbers(*shape: int) -> Tensor:
    return torch.linspace(-2, 2, max(torch.Size(shape).numel(), 1)).reshape(shape) if 0 not in shape else torch.empty(shape)


def selection(x: Tensor) -> list[Tensor]:
    """Reads and writes by index along the only dimension."""
    index = torch.zeros(min(x.numel(), 1), dtype=torch.int64, device=x.device)
    index = index.reshape(()) if not x.dim() else index
    results = [x.index_select(0, index), x.gather(0, index), x.index_fill(0, index, 3.0), x.scatter(0, index, 5.0)]
    return [
        *results,
        x.index_add(0, index, torch.ones_like(index, dtype=x.dtype)),
        x.index_copy(0, index, torch.ones_like(index, dtype=x.dtype)),
    ]


CASES: dict[str, Case] = {
    **{
        f"{name} of {title}": lambda put, do=do, shape=shape: do(put(numbers(*shape)))
        for name, do in {
            "softmax": lambda x: x.softmax(0),
            "log_softmax": lambda x: x.log_softmax(-1),
            "cumsum": lambda x: x.cumsum(0),
            "cumprod": lambda x: x.cumprod(-1),
            "cummax": lambda x: tuple(x.cummax(0)),
            "squeeze": lambda x: (x.squeeze(), x.squeeze(0)),
            "topk": lambda x: tuple(x.topk(min(x.numel(), 1))),
            "sort": lambda x: tuple(x.sort()),
            "indexing": selection,
        }.items()
        for title, shape in {"a number": (), "nothing": (0,)}.items()
    },
    "topk with int64 values": lambda put: tuple(put(torch.tensor([2**62, -(2**62), 2**62 + 1])).topk(2)),
    "diagonal below": lambda put: [put(numbers(3, 4)).diagonal(k) for k in (-3, -2, -1, 0, 2, 4)],
    "norm of infinite order": lambda put: [put(numbers(3, 4)).norm(order) for order in (INF, -INF)],
    "vector norm of infinite order": lambda put: [torch.linalg.vector_norm(put(numbers(3, 4)), order, dim=1) for order in (INF, -INF, 0)],
    "nearest resize by 1.7": lambda put: [
        F.interpolate(put(numbers(1, 1, 5, 7)), scale_factor=1.7, mode=mode, recompute_scale_factor=again)
        for mode in ("nearest", "nearest-exact")
        for again in (None, True)
    ],
    "amax and amin of everything": lambda put: (
        put(numbers(2, 3)).amax(),
        put(numbers(2, 3)).amin(),
        put(numbers(2, 3)).amax((), keepdim=True),
    ),
    "count_nonzero counts in int64": lambda put: (put(numbers(4) > 0).count_nonzero(), put(numbers(2, 3)).count_nonzero(1)),
    "roll of nothing": lambda put: [put(torch.empty(shape)).roll(2, 0) for shape in ((0,), (0, 3), (2, 0))],
    "searchsorted by side": lambda put: [
        torch.searchsorted(put(torch.tensor([1, 3, 3, 5])), put(torch.tensor([3, 0, 5, 9])), side=side) for side in ("left", "right")
    ],
    "tensor_split by a tensor": lambda put: put(numbers(7)).tensor_split(torch.tensor([1, 4])),
    "tensor_split by a number in a tensor": lambda put: put(numbers(7)).tensor_split(torch.tensor(3)),
    "cdist": lambda put: [torch.cdist(put(numbers(2, 4, 3)), put(numbers(2, 5, 3)) * 0.7, p) for p in (0.0, 1.0, 2.0, 3.0, INF)],
    "cdist of many rows": lambda put: torch.cdist(put(numbers(30, 3)), put(numbers(40, 3)) * 0.7),
    "median and mode": lambda put: (
        *put(torch.tensor([[3, 1, 3], [2, 2, 0]])).mode(1),
        *put(numbers(2, 5)).median(1),
        put(numbers(6)).median(),
    ),
    "index_reduce": lambda put: [
        put(numbers(3, 2)).index_reduce(0, put(torch.tensor([0, 2, 0])), put(numbers(3, 2)) + 1, kind, include_self=own)
        for kind in ("prod", "mean", "amax", "amin")
        for own in (True, False)
    ],
    "polygamma": lambda put: [torch.polygamma(order, put(torch.tensor([0.3, 1.0, 4.5, -0.5]))) for order in (0, 1, 2, 4)],
    "bucketize": lambda put: [
        torch.bucketize(put(numbers(5)), put(torch.tensor([-1.0, 0.0, 1.0])), right=right) for right in (False, True)
    ],
    "histogram": lambda put: tuple(torch.histogram(put(numbers(30)), 7)),
    "unique": lambda put: torch.unique(put(torch.tensor([3, 1, 3, 2])), return_inverse=True, return_counts=True),
    "grid_sample": lambda put: [
        F.grid_sample(put(numbers(1, 2, 4, 5)), put(numbers(1, 3, 3, 2) * 0.7), mode=mode, padding_mode=padding, align_corners=align)
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for align in (False, True)
    ],
}


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")
@pytest.mark.parametrize("name", CASES)
def test_forward(name: str) -> None:
    expected = tree_leaves(CASES[name](lambda x: x))
    got = tree_leaves(CASES[name](lambda x: x.to("xla")))
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.device.type == "xla"
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


GRADIENTS: dict[str, Case] = {
    "elu": lambda x: F.elu(x, 1.5),
    "celu": lambda x: F.celu(x, 0.7),
    "selu": F.selu,
    "norm of order inf": lambda x: x.norm(INF),
    "norm of order -inf": lambda x: x.norm(-INF),
    "diagonal below": lambda x: x.view(3, 3).diagonal(-1) ** 2,
    "amax shares among ties": lambda x: x.round().amax(),
    "cumprod over a zero": lambda x: x.cumprod(0),
    "softmax": lambda x: x.softmax(0) ** 2,
}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, in_place: bool) -> None:
    if in_place and name not in ("elu", "celu", "selu"):
        return
    found = []
    for device in ("cpu", "xla"):
        x = numbers(9).to(device).requires_grad_()
        do = {"elu": lambda y: F.elu_(y, 1.5), "celu": lambda y: F.celu_(y, 0.7), "selu": F.selu_}[name] if in_place else GRADIENTS[name]
        do(x * 1).sum().backward()
        assert x.grad is not None
        found.append(x.grad.cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_shapes_of_batched_svd() -> None:
    for shape in ((2, 3, 5), (2, 5, 3), (0, 3, 4), (2, 0, 3)):
        for full in (False, True):
            theirs = torch.linalg.svd(torch.ones(shape), full_matrices=full)
            mine = torch.linalg.svd(torch.ones(shape).to("xla"), full_matrices=full)
            assert [part.shape for part in mine] == [part.shape for part in theirs]


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigh_reads_the_triangle_it_is_told(uplo: str) -> None:
    a = torch.arange(16.0).reshape(4, 4)
    torch.testing.assert_close(
        torch.linalg.eigvalsh(a.to("xla"), UPLO=uplo).cpu(), torch.linalg.eigvalsh(a, UPLO=uplo), rtol=1e-4, atol=1e-4
    )


def test_embedding_with_a_largest_norm_scales_its_weight() -> None:
    found = []
    for device in ("cpu", "xla"):
        table = nn.Embedding.from_pretrained(numbers(5, 3) * 3, freeze=True, max_norm=1.0).to(device)
        out = table(torch.tensor([[1, 4], [1, 0]], device=device))
        found.append([out.cpu(), table.weight.detach().cpu()])
    for mine, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, theirs)


def test_calls_that_differ_in_shape_or_factor_do_not_share_a_result() -> None:
    for shape in ((2, 3), (5,), (2, 3, 4)):
        assert torch.empty(shape, device="xla").exponential_().shape == shape
    x = numbers(1, 16, 3, 3)
    for factor in (1, 2, 4):
        torch.testing.assert_close(F.pixel_shuffle(x.to("xla"), factor).cpu(), F.pixel_shuffle(x, factor))

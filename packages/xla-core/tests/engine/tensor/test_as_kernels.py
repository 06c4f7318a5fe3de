"""Shapes and types of results are those of torch's kernels, also where torch infers others on meta tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

TYPES = (torch.int32, torch.int64)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("offsets_type", TYPES, ids=str)
@pytest.mark.parametrize("indices_type", TYPES, ids=str)
def test_bags_with_integers_of_two_types(indices_type: torch.dtype, offsets_type: torch.dtype, mode: str) -> None:
    torch.manual_seed(0)
    indices, offsets = torch.tensor([1, 4, 4, 2], dtype=indices_type), torch.tensor([0, 3], dtype=offsets_type)
    weighted = mode == "sum"
    seen = []
    for device in ("cpu", "xla"):
        torch.manual_seed(1)
        table, weights = torch.randn(6, 3).to(device).requires_grad_(), torch.randn(4).to(device).requires_grad_()
        result = F.embedding_bag(indices.to(device), table, offsets.to(device), mode=mode, per_sample_weights=weights if weighted else None)
        gradients = torch.autograd.grad(result.square().sum(), (table, weights) if weighted else (table,))
        seen.append([tensor.detach().cpu() for tensor in (result, *gradients)])
    torch.testing.assert_close(seen[1], seen[0])
    kept = torch.ops.aten._embedding_bag(table.detach(), indices.to("xla"), offsets.to("xla"))[1:]
    expected = torch.ops.aten._embedding_bag(table.detach().cpu(), indices, offsets)[1:]
    assert [tensor.dtype for tensor in kept] == [tensor.dtype for tensor in expected]


@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)], ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_nansum_over_no_dimension_is_over_all(shape: tuple[int, ...], keepdim: bool) -> None:
    x = torch.randn(shape)
    for dim in ([], None):
        for out in (torch.float32, torch.float64):
            ours = torch.nansum(x.to("xla"), dim, keepdim, dtype=out)
            torch.testing.assert_close(ours.cpu(), torch.nansum(x, dim, keepdim, dtype=out))

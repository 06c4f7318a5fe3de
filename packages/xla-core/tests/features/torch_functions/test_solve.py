"""Results and gradients of `linalg.solve` are those of the CPU, whichever matrix this torch factors there."""

from __future__ import annotations

import pytest
import torch

Tensor = torch.Tensor


def solved(device: str, a: Tensor, b: Tensor, left: bool, transposed: bool) -> list[Tensor]:
    """The result, and the gradients of both operands."""
    matrix, columns = (each.clone().to(device).requires_grad_() for each in (a, b))
    result = torch.linalg.solve(matrix.mT if transposed else matrix, columns, left=left)
    gradients = torch.autograd.grad(result.abs().square().sum(), (matrix, columns))
    return [each.detach().cpu() for each in (result, *gradients)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("shapes", [((2, 4, 4), (2, 4, 4)), ((4, 4), (4, 4)), ((4, 4), (4,))], ids=str)
def test_solve(shapes: tuple[tuple[int, ...], tuple[int, ...]], left: bool, transposed: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes)
    a += 4 * torch.eye(4, dtype=dtype)
    if b.ndim == 1 and not left:
        with pytest.raises(RuntimeError):
            solved("cpu", a, b, left, transposed)
        with pytest.raises(RuntimeError):
            solved("xla", a, b, left, transposed)
        return
    for mine, theirs in zip(solved("xla", a, b, left, transposed), solved("cpu", a, b, left, transposed), strict=True):
        torch.testing.assert_close(mine, theirs)

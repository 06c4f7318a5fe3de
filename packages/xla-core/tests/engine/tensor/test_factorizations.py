"""Factorisations that fail raise where they are asked to, with the CPU's words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

CALLS: dict[str, Callable[[Tensor], object]] = {
    "inverse": lambda a: torch.linalg.inv_ex(a, check_errors=True),
    "cholesky": lambda a: torch.linalg.cholesky_ex(a, check_errors=True),
    "lu": lambda a: torch.linalg.lu_factor_ex(a, check_errors=True),
    "solve": lambda a: torch.linalg.solve_ex(a, a, check_errors=True),
    "out": lambda a: torch.linalg.inv_ex(
        a, check_errors=True, out=(torch.empty_like(a), torch.empty(a.shape[:-2], dtype=torch.int32, device=a.device))
    ),
}


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
@pytest.mark.parametrize("name", CALLS)
def test_a_failure_is_raised_where_it_is_asked_for(name: str, batch: tuple[int, ...]) -> None:
    singular = torch.zeros(*batch, 3, 3)
    singular[..., 0, :2] = torch.tensor([1.0, 5.0])
    texts = []
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError) as raised:
            CALLS[name](singular.to(device))
        texts.append(f"{type(raised.value).__name__}: {raised.value}")
        CALLS[name](singular.to(device) + 3 * torch.eye(3, device=device))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("function", [lambda a: torch.linalg.eig(a)[0], torch.linalg.eigvals], ids=["both", "values"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_eigenvalues_of_what_is_not_finite_are_an_error(function: Callable[[Tensor], Tensor], value: float) -> None:
    assert function(torch.eye(3, device="xla")).tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="input tensor should not contain infs or NaNs"):
        function(torch.full((3, 3), value, device="xla")).cpu()

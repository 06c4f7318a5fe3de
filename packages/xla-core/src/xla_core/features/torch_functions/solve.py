"""`linalg.solve` on torch before 2.12, whose gradient expects a factorisation of the transposed matrix, as its own CPU kernel gives it.

The lowering factors the matrix itself, as later releases do. On the older ones `solve` is made of two operations that have gradients
of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xla_core.base import private_torch

_library = torch.library.Library("aten", "IMPL")


def _solve(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """_linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> (result, LU, pivots, info)"""
    factors, pivots, info = torch.linalg.lu_factor_ex(a, check_errors=check_errors)
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    result = torch.linalg.lu_solve(factors, pivots, b.unsqueeze(-1) if vector else b, left=left)
    return result.squeeze(-1) if vector else result, factors.detach(), pivots, info


def register() -> None:
    """Put it in front of autograd where torch is older than 2.12."""
    if private_torch.torch_version < (2, 12):
        _library.impl("_linalg_solve_ex", _solve, "AutogradPrivateUse1")

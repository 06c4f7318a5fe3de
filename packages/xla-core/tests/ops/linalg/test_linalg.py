"""Linear algebra lowerings against CPU torch; what is unique only up to sign is checked by what it reproduces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import xla_core.ops.linalg.decompose
import xla_core.ops.linalg.solve  # noqa: F401 - registers the family
from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import torch_version
from xla_core.testing.lowering import check_lowering, lower_once

aten = torch.ops.aten
DTYPES = [torch.float64, torch.complex128]
CLOSE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8}
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(5)
    yield


def matrices(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Well conditioned random matrices."""
    a = torch.randn(shape, dtype=dtype)
    return a + 3 * torch.eye(shape[-2], shape[-1], dtype=dtype)


def positive(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Hermitian positive definite matrices."""
    a = torch.randn(shape, dtype=dtype)
    return a @ a.mH + torch.eye(shape[-1], dtype=dtype)


@by_dtype
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (3, 0, 0)], ids=str)
def test_square(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = matrices(*shape, dtype=dtype)
    check_lowering(aten.linalg_inv_ex.default, a, **CLOSE)
    check_lowering(aten._linalg_det.default, a, **CLOSE)
    check_lowering(aten._linalg_slogdet.default, a, **CLOSE)
    check_lowering(aten.linalg_lu_factor_ex.default, a, **CLOSE)
    check_lowering(aten.linalg_matrix_exp.default, a, **CLOSE)


@by_dtype
def test_solve(dtype: torch.dtype) -> None:
    if torch_version < (2, 12) and not dtype.is_complex:
        pytest.skip("the CPU factors the transposed matrix here: see test_solve.py of the frontend for the results and gradients")
    a, b = matrices(2, 4, 4, dtype=dtype), torch.randn(2, 4, 3, dtype=dtype)
    check_lowering(aten._linalg_solve_ex.default, a, b, **CLOSE)
    check_lowering(aten._linalg_solve_ex.default, a, b.mT.contiguous(), left=False, **CLOSE)
    check_lowering(aten._linalg_solve_ex.default, a[0], b[0, :, 0].clone(), **CLOSE)


@by_dtype
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("size", [1, 6])
def test_the_order_of_the_minor_that_is_not_positive(size: int, upper: bool, dtype: torch.dtype) -> None:
    for place in range(size):
        a = positive(3, size, size, dtype=dtype)
        a[1, place, place] = -1
        a[2, place, place] = torch.nan
        expected = torch.linalg.cholesky_ex(a, upper=upper)
        _, order = lower_once(aten.linalg_cholesky_ex.default, expected, a, upper=upper)
        assert order.tolist() == expected.info.tolist() == [0, place + 1, place + 1]


@by_dtype
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_solve_with_factors(left: bool, adjoint: bool, dtype: torch.dtype) -> None:
    packed, pivots, _ = torch.linalg.lu_factor_ex(matrices(2, 4, 4, dtype=dtype))
    b = torch.randn(2, 4, 3, dtype=dtype) if left else torch.randn(2, 3, 4, dtype=dtype)
    check_lowering(aten.linalg_lu_solve.default, packed.contiguous(), pivots, b, left=left, adjoint=adjoint, **CLOSE)


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 5), (5, 3)], ids=str)
def test_lu(shape: tuple[int, ...]) -> None:
    a = matrices(*shape)
    check_lowering(aten.linalg_lu.default, a, **CLOSE)
    packed, pivots, _ = torch.linalg.lu_factor_ex(a)
    check_lowering(aten.lu_unpack.default, packed.contiguous(), pivots, **CLOSE)
    check_lowering(aten.lu_unpack.default, packed.contiguous(), pivots, True, False, **CLOSE)
    with pytest.raises(UnsupportedOperationError, match="pivot=True"):
        lower_once(aten.linalg_lu.default, (a, a, a), a, pivot=False)


def test_singular_matrix_is_reported() -> None:
    a = torch.ones(3, 3, dtype=torch.float64)
    _, info = lower_once(aten.linalg_inv_ex.default, aten.linalg_inv_ex(torch.eye(3, dtype=torch.float64)), a)
    assert info.item() == 2
    _, info = lower_once(aten.linalg_cholesky_ex.default, aten.linalg_cholesky_ex(torch.eye(3, dtype=torch.float64)), -a)
    assert info.item() != 0
    check_lowering(aten._linalg_det.default, torch.zeros(2, 2, dtype=torch.float64))


@by_dtype
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(upper: bool, dtype: torch.dtype) -> None:
    a = positive(2, 4, 4, dtype=dtype)
    other = torch.full_like(a, 7)
    half = a.triu() + other.tril(-1) if upper else a.tril() + other.triu(1)  # the other triangle is never read
    check_lowering(aten.linalg_cholesky_ex.default, half, upper=upper, **CLOSE)
    factor = torch.linalg.cholesky(a, upper=upper)
    check_lowering(aten.cholesky_solve.default, torch.randn(2, 4, 3, dtype=dtype), factor, upper, **CLOSE)
    check_lowering(aten.cholesky_inverse.default, factor, upper, **CLOSE)


@by_dtype
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_by_its_old_name(upper: bool, dtype: torch.dtype, needs: Callable[[str], None]) -> None:
    needs("cholesky")
    check_lowering(aten.cholesky.default, positive(2, 4, 4, dtype=dtype), upper, **CLOSE)


@by_dtype
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular_systems(upper: bool, unit: bool, dtype: torch.dtype) -> None:
    a, b = matrices(2, 4, 4, dtype=dtype), torch.randn(4, 3, dtype=dtype)
    check_lowering(aten.linalg_solve_triangular.default, a, b, upper=upper, unitriangular=unit, **CLOSE)
    check_lowering(aten.linalg_solve_triangular.default, a, b.mT.contiguous(), upper=upper, left=False, unitriangular=unit, **CLOSE)
    for transpose in (False, True):
        check_lowering(aten.triangular_solve.default, torch.randn(2, 4, 3, dtype=dtype), a, upper, transpose, unit, **CLOSE)


@by_dtype
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 5)], ids=str)
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr(mode: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check_lowering(aten.linalg_qr.default, matrices(*shape, dtype=dtype), mode, **CLOSE)


@by_dtype
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 5), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("full", [False, True])
def test_svd(full: bool, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = torch.randn(shape, dtype=dtype)
    expected = aten._linalg_svd(a, full)
    u, s, vh = lower_once(aten._linalg_svd.default, expected, a, full)
    torch.testing.assert_close(s, expected[1], **CLOSE)
    k = s.shape[-1]
    torch.testing.assert_close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, **CLOSE)
    torch.testing.assert_close(u.mH @ u, torch.eye(u.shape[-1], dtype=dtype).expand(*a.shape[:-2], -1, -1), **CLOSE)
    check_lowering(aten._linalg_svd.default, a, full, False, **CLOSE)


@by_dtype
@pytest.mark.parametrize("triangle", ["L", "U"])
def test_eigh(triangle: str, dtype: torch.dtype) -> None:
    a = positive(2, 4, 4, dtype=dtype)
    half = a.triu() if triangle == "U" else a.tril()
    expected = aten._linalg_eigh(half, triangle)
    values, vectors = lower_once(aten._linalg_eigh.default, expected, half, triangle)
    torch.testing.assert_close(values, expected[0], **CLOSE)
    torch.testing.assert_close(a @ vectors, vectors * values[..., None, :], **CLOSE)
    check_lowering(aten._linalg_eigh.default, half, triangle, False, **CLOSE)


@by_dtype
def test_eig(dtype: torch.dtype) -> None:
    a = torch.randn(2, 4, 4, dtype=dtype)
    values, vectors = lower_once(aten.linalg_eig.default, aten.linalg_eig(a), a)
    torch.testing.assert_close(a.to(torch.complex128) @ vectors, vectors * values[..., None, :], **CLOSE)
    (alone,) = lower_once(aten._linalg_eigvals.default, aten.linalg_eig(a)[0], a)
    torch.testing.assert_close(alone.abs().sort().values, values.abs().sort().values, **CLOSE)


def test_householder_product() -> None:
    a, tau = torch.geqrf(torch.randn(2, 5, 3, dtype=torch.float64))
    check_lowering(aten.linalg_householder_product.default, a.contiguous(), tau, **CLOSE)


@by_dtype
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 5), (4, 4), (0, 3)], ids=str)
def test_geqrf(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check_lowering(aten.geqrf.default, torch.randn(shape, dtype=dtype), **CLOSE)


@by_dtype
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_ormqr(left: bool, transpose: bool, dtype: torch.dtype) -> None:
    a, tau = torch.geqrf(torch.randn(2, 4, 3, dtype=dtype))
    other = torch.randn(2, *((4, 2) if left else (2, 4)), dtype=dtype)
    check_lowering(aten.ormqr.default, a.contiguous(), tau, other, left, transpose, **CLOSE)


@by_dtype
@pytest.mark.parametrize("hermitian", [False, True])
def test_pinv(hermitian: bool, dtype: torch.dtype) -> None:
    a = positive(4, 4, dtype=dtype) if hermitian else torch.randn(5, 3, dtype=dtype)
    choices: list[dict[str, Any]] = [{}, {"rtol": torch.tensor(0.4, dtype=torch.float64)}, {"atol": torch.tensor(0.9, dtype=torch.float64)}]
    for bounds in choices:
        expected = aten.linalg_pinv.atol_rtol_tensor(a, **bounds, hermitian=hermitian)
        (got,) = lower_once(aten.linalg_pinv.atol_rtol_tensor, expected, a, **bounds, hermitian=hermitian)
        torch.testing.assert_close(got, expected.resolve_conj(), **CLOSE)


@pytest.mark.parametrize("size", [0.0, 1e-3, 30.0])
def test_matrix_exp_of_any_size(size: float) -> None:
    check_lowering(aten.linalg_matrix_exp.default, torch.randn(3, 4, 4, dtype=torch.float64) * size, rtol=1e-6, atol=1e-8)

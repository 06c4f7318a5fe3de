"""torch's type promotion and conversions, rebuilt for arrays."""

from __future__ import annotations

import itertools
import warnings

import jax
import numpy as np
import pytest
import torch

from xla_core.base.dtypes import torch_dtype
from xla_core.ops import promote
from xla_core.testing.lowering import to_array, to_tensor

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
# XLA has no such dtypes: complex64 stands for them. torch 2.15 added the second.
COMPLEX_HALF = {torch.complex32, getattr(torch, "bcomplex32", torch.complex32)}


def expected_type(*operands: torch.Tensor | float) -> torch.dtype:
    found = torch.result_type(*operands)
    return torch.complex64 if found in COMPLEX_HALF else found


@pytest.mark.parametrize("dims", [(1, 1), (0, 1), (0, 0)])
def test_two_tensors(dims: tuple[int, int]) -> None:
    with jax.enable_x64(True):
        for left, right in itertools.product(DTYPES, DTYPES):
            tensors = [torch.ones((2,) * ndim, dtype=dtype) for ndim, dtype in zip(dims, (left, right), strict=True)]
            wide_complex = {left, right} & {torch.complex128} and {left, right} & {torch.bfloat16, torch.float16, torch.float32}
            found = torch_dtype(promote.common_dtype(*map(to_array, tensors)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that complex32 is experimental
                assert found == expected_type(*tensors) or wide_complex and found.is_complex


@pytest.mark.parametrize("number", [True, 2, 2.5, 1j])
@pytest.mark.parametrize("ndim", [0, 1])
def test_numbers_are_weak(number: complex, ndim: int) -> None:
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in DTYPES:
            tensor = torch.ones((2,) * ndim, dtype=dtype)
            wanted = expected_type(tensor, number)
            assert torch_dtype(promote.common_dtype(to_array(tensor), number)) == wanted
            as_input = promote.Weak(jax.numpy.asarray(number))
            assert torch_dtype(promote.common_dtype(to_array(tensor), as_input)) == wanted


def test_nothing_to_promote() -> None:
    with pytest.raises(ValueError, match="at least one operand"):
        promote.common_dtype()


@pytest.mark.parametrize(
    "target", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.bfloat16, torch.float64]
)
def test_conversions_wrap_and_truncate(target: torch.dtype) -> None:
    values = torch.tensor([0.0, 0.5, -0.5, 1.9, -1.9, 127.5, 255.0, 256.0, 300.7, -129.0, 40000.0])
    with jax.enable_x64(True):
        for source in (values, values.double(), values.to(torch.int64), values > 0):
            got = to_tensor(promote.cast(to_array(source), np.dtype(promote.natural_dtype(target))))
            assert torch.equal(got, source.to(target))


def test_complex_to_real() -> None:
    values = torch.tensor([0j, 1j, 2 + 3j])
    with jax.enable_x64(True):
        assert to_tensor(promote.cast(to_array(values), np.dtype(np.float64))).tolist() == [0.0, 0.0, 2.0]
        assert to_tensor(promote.cast(to_array(values), np.dtype(bool))).tolist() == [False, True, True]


def test_numbers_beyond_a_dtype_become_infinite() -> None:
    with jax.enable_x64(True):
        assert float(promote.as_array(1e300, np.dtype(np.float32))) == float("inf")
        assert int(promote.as_array(-1, np.dtype(np.uint8))) == 255


def test_broadcast() -> None:
    shapes = [x.shape for x in promote.broadcast(jax.numpy.zeros((3, 1)), jax.numpy.zeros(()), jax.numpy.zeros((2, 1, 4)))]
    assert shapes == [(2, 3, 4)] * 3
    assert promote.full(3, (2, 0), np.dtype(np.int32)).shape == (2, 0)


def test_limits() -> None:
    assert promote.lowest(np.dtype(np.int8)) == -128 and promote.highest(np.dtype(np.uint8)) == 255
    assert promote.lowest(np.dtype(np.float32)) == float("-inf") and promote.highest(np.dtype(bool)) is True

"""Reductions as users give them, by the names of `xm`."""

from __future__ import annotations

import pytest
import torch

import torch_xla.core.xla_model as xm
from xla_core.api.reductions import ReduceOp, parse_reduce_op


def test_names_of_xm_are_parsed() -> None:
    names = [xm.REDUCE_SUM, xm.REDUCE_MUL, xm.REDUCE_AND, xm.REDUCE_OR, "xor", xm.REDUCE_MIN, xm.REDUCE_MAX]
    assert [parse_reduce_op(name) for name in names] == list(ReduceOp)
    assert parse_reduce_op(ReduceOp.MAX) is ReduceOp.MAX


@pytest.mark.parametrize("given", ["average", "SUM", "", None, 3, ["sum"]])
def test_other_names_are_refused(given: object) -> None:
    with pytest.raises(ValueError, match="reduce_type is .*, must be one of sum, mul, and, or, xor, min, max"):
        parse_reduce_op(given)


@pytest.mark.parametrize(
    ("op", "dtype", "text"),
    [
        (ReduceOp.AND, torch.float32, "'and' is for booleans and integers"),
        (ReduceOp.OR, torch.complex64, "'or' is for booleans and integers"),
        (ReduceOp.MIN, torch.complex64, "'min' needs an order"),
    ],
)
def test_dtypes_without_a_reduction_are_refused(op: ReduceOp, dtype: torch.dtype, text: str) -> None:
    op.check_dtypes([torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.bool)])
    with pytest.raises(TypeError, match=text):
        op.check_dtypes([torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=dtype)])

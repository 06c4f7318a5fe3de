"""Reductions as users give them, by the names of `xm` and by the operations of `torch.distributed`."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import torch_xla.core.xla_model as xm
from xla_core.api.reductions import ReduceOp, parse_reduce_op, parse_torch_reduce_op


def test_names_of_xm_are_parsed() -> None:
    names = [xm.REDUCE_SUM, xm.REDUCE_MUL, xm.REDUCE_AND, xm.REDUCE_OR, "xor", xm.REDUCE_MIN, xm.REDUCE_MAX]
    assert [parse_reduce_op(name) for name in names] == list(ReduceOp)
    assert parse_reduce_op(ReduceOp.MAX) is ReduceOp.MAX


@pytest.mark.parametrize("given", ["average", "SUM", "", None, 3, ["sum"]])
def test_other_names_are_refused(given: object) -> None:
    with pytest.raises(ValueError, match="reduce_type is .*, must be one of sum, mul, and, or, xor, min, max"):
        parse_reduce_op(given)


@pytest.mark.parametrize(
    ("name", "op", "scale"),
    [
        ("SUM", ReduceOp.SUM, 1.0),
        ("AVG", ReduceOp.SUM, 0.25),
        ("PRODUCT", ReduceOp.MUL, 1.0),
        ("BAND", ReduceOp.AND, 1.0),
        ("BOR", ReduceOp.OR, 1.0),
        ("BXOR", ReduceOp.XOR, 1.0),
        ("MIN", ReduceOp.MIN, 1.0),
        ("MAX", ReduceOp.MAX, 1.0),
    ],
)
def test_operations_of_torch_are_parsed(name: str, op: ReduceOp, scale: float) -> None:
    operation = getattr(dist.ReduceOp, name)
    for given in (operation, dist.ReduceOp(operation), name, name.lower()):
        assert parse_torch_reduce_op(given, 4) == (op, scale)


def test_a_sum_of_products_is_parsed() -> None:
    premultiplied = torch._C._distributed_c10d._make_nccl_premul_sum(2.5)
    assert parse_torch_reduce_op(premultiplied, 4) == (ReduceOp.SUM, 2.5)


def test_other_operations_of_torch_are_refused() -> None:
    with pytest.raises(RuntimeError, match="reduce_op is 'mean', must be one of sum, avg"):
        parse_torch_reduce_op("mean", 2)


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

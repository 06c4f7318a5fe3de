"""Reductions as users of `torch.distributed` give them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from xla_core.abi.collectives import ReduceOp
from xla_distributed.process_groups.reductions import parse_torch_reduce_op


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

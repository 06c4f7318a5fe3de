"""The table of what platforms cannot take."""

from __future__ import annotations

import pytest
import torch

from xla_core.ops import families
from xla_core.ops.limits import LIMITS, Instead, Limit, limit_of
from xla_core.ops.table import TABLE


def test_its_operators_have_rows_of_the_op_table() -> None:
    families.load()
    named = {operator for limits in LIMITS.values() for limit in limits for operator in limit.operators}
    assert named and named <= TABLE.keys()


def test_each_row_says_why_and_what_to_do() -> None:
    for limit in (limit for limits in LIMITS.values() for limit in limits):
        assert limit.operators or limit.dtypes or limit.results, "it would be about everything"
        assert limit.reason and limit.advice and not limit.reason.endswith(".") and not limit.advice.endswith(".")


BYTES = frozenset({torch.int8})
ADD = frozenset({"aten::add.Tensor"})


@pytest.mark.parametrize(
    ("limit", "operator", "operands", "results", "holds"),
    [
        (Limit(Instead.REFUSED, "a", "b", dtypes=BYTES), "aten::add.Tensor", {torch.int8, torch.bool}, set(), True),
        (Limit(Instead.REFUSED, "a", "b", dtypes=BYTES), "aten::add.Tensor", set(), {torch.int8}, True),
        (Limit(Instead.REFUSED, "a", "b", dtypes=BYTES), "aten::add.Tensor", {torch.bool}, {torch.bool}, False),
        (Limit(Instead.ON_HOST, "a", "b", ADD), "aten::add.Tensor", set(), set(), True),
        (Limit(Instead.ON_HOST, "a", "b", ADD), "aten::mul.Tensor", {torch.int8}, {torch.int8}, False),
        (Limit(Instead.ON_HOST, "a", "b", ADD, results=BYTES), "aten::add.Tensor", {torch.int8}, {torch.bool}, False),
        (Limit(Instead.ON_HOST, "a", "b", ADD, results=BYTES), "aten::add.Tensor", {torch.bool}, {torch.int8}, True),
    ],
)
def test_it_holds_for_operators_and_dtypes(
    limit: Limit, operator: str, operands: set[torch.dtype], results: set[torch.dtype], holds: bool
) -> None:
    assert limit.holds(operator, operands, results) is holds


def test_platforms_without_limits_have_none() -> None:
    assert limit_of("cpu", "aten::linalg_eig", {torch.complex128}, ()) is None
    limit = limit_of("tpu", "aten::linalg_eig", {torch.float32}, {torch.complex64})
    assert limit is not None and limit.instead is Instead.ON_HOST

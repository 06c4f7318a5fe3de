"""The text about an operator says how it is called and where its lowering is."""

from __future__ import annotations

import pytest
import torch

import torch_xla
from xla_core.base import metrics
from xla_core.testing import describe

# Of each kind of operator, what its text has to say.
KINDS: dict[str, list[str]] = {
    "aten::add.Tensor": ["called recorded by a row", "elementwise/arithmetic.py", "scalars alpha, other", "adds_gradients yes"],
    "aten::add_.Tensor": ["that of aten::add.Tensor", "written to self", "elementwise/arithmetic.py"],
    "aten::add.out": ["that of aten::add.Tensor", "written to out", "elementwise/arithmetic.py"],
    "aten::einsum": ["as the operators that torch composes it of", "autocast in the dtype of autocast"],
    "aten::softmax.int": ["as the operators that torch composes it of", "autocast in float32"],
    "aten::cat": ["autocast in the widest dtype of its operands", "shape/rearrange.py"],
    "aten::sin": ["lowering jax.lax.sin, xla_core/ops/kernel.py"],
    "aten::convolution": ["autocast in the dtype of autocast", "shapes xla_core.ops.nn.conv", "shown_as aten::convolution_overrideable"],
    "aten::native_batch_norm": ["by a handler of its own, xla_core.features.torch_functions.batch_norm.batch_norm"],
    "aten::transpose.int": ["as a view: nothing is recorded", "read by xla_core.ops.shape.views._transpose"],
    "aten::squeeze_": ["the tensor itself becomes it"],
    "aten::bernoulli.p": ["random yes"],
    "aten::_foreach_add_.Scalar": ["on_lists yes", "optim/foreach.py"],
    "aten::abs": ["beyond_cpu torch.bool"],
    "aten::index.Tensor": ["accepts calls that", "index/index.py"],
    "aten::_pack_padded_sequence": ["by torch's kernel for any device", "kernel torch makes it of other operators"],
    "aten::_linalg_check_errors": ["by a handler of its own, xla_core.engine.tensor.handlers.reads.linalg_check_errors"],
}


@pytest.mark.parametrize("name", KINDS)
def test_the_text_says_what_is_known(name: str) -> None:
    text = " ".join(describe(name).split())
    assert text.startswith(name)
    for part in KINDS[name]:
        assert part in text


def test_what_has_no_lowering_runs_on_the_cpu() -> None:
    """The text says so, and the counters of a call do."""
    assert "on the CPU: it has no lowering" in describe("aten::linalg_ldl_factor_ex")
    before = metrics.counter("aten::linalg_ldl_factor_ex")
    with pytest.warns(RuntimeWarning, match="linalg_ldl_factor_ex has no XLA lowering"):
        torch.linalg.ldl_factor_ex(torch.eye(2, device="xla"))
    torch_xla.sync()
    assert metrics.counter("aten::linalg_ldl_factor_ex") == before + 1


def test_names_may_leave_out_aten() -> None:
    assert describe("add.Tensor") == describe("aten::add.Tensor")


def test_an_unknown_operator_is_an_error_with_close_names() -> None:
    with pytest.raises(ValueError, match=r"has no operator aten::convolutoin; there is .*aten::convolution"):
        describe("convolutoin")
    with pytest.raises(ValueError, match=r"has no operator xyz::qqqqqqq; there is none of a name that is close"):
        describe("xyz::qqqqqqq")


def test_an_unknown_overload_is_an_error_with_all_of_them() -> None:
    with pytest.raises(ValueError, match=r"aten::add has no overload default; there is .*aten::add\.Tensor"):
        describe("add")

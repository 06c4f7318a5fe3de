"""The op table leaves out what this torch does not have, and only that."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from xla_core.base.errors import RegistrationError
from xla_core.base.private_torch import torch_version
from xla_core.ops import families, table
from xla_core.ops.facts import Autocast, TorchKernel

Version = tuple[int, int]
# The first torch that has an operation, and the first that has it no more. All others are in every torch that the wheel allows.
LIFETIMES: dict[str, tuple[Version | None, Version | None]] = {
    "aten::_foreach_clone": ((2, 12), None),
    "aten::_foreach_mm": ((2, 13), None),
    "aten::_foreach_powsum.Scalar": ((2, 11), None),
    "aten::_upsample_lanczos2d_aa": ((2, 12), None),
    "aten::_upsample_lanczos2d_aa_backward": ((2, 12), None),
    "aten::cholesky": (None, (2, 14)),
    "aten::qr": (None, (2, 14)),
}


def test_what_this_torch_lacks_is_known() -> None:
    """A misspelt name is not taken for one that another torch has."""
    families.load()
    lacking = [name for name, (since, until) in LIFETIMES.items() if since and torch_version < since or until and torch_version >= until]
    assert table.absent_operations() == sorted(lacking)


def test_there_is_no_row_for_what_is_absent() -> None:
    families.load()
    assert not set(table.absent_operations()) & set(table.TABLE)


def test_names_outside_aten_must_exist() -> None:
    with pytest.raises(RegistrationError, match="no operation named 'xla_core::no_such_operation'"):
        table.op("xla_core::no_such_operation")(lambda context: None)


def test_registering_what_no_torch_has_is_an_error() -> None:
    with pytest.raises(RegistrationError, match="no operation named 'aten::no_such_operation'"):
        table.register_op(table.OpSpec("aten::no_such_operation", lambda context: None))


# Each on an operator that torch has and the table has not, and what the error says.
WRONG_FACTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "no choice": (
        "special_zeta",
        {"autocast": "lower"},
        "is one of Autocast.LOWER, Autocast.FLOAT32, Autocast.WIDEST, got 'lower'",
    ),
    "a choice outside of aten": ("xla_core::adam_", {"autocast": Autocast.LOWER}, "autocast is for operators of aten"),
    "no rule of shapes": ("special_zeta", {"shapes": (2, 3)}, r"shapes is a function of meta tensors, got \(2, 3\)"),
    "no dtypes": ("special_zeta", {"beyond_cpu": {torch.bool}}, "beyond_cpu is a frozenset of torch dtypes, got {torch.bool}"),
    "no tensor to have a dtype": ("special_zeta.self_scalar", {"beyond_cpu": frozenset({torch.bool})}, "here there is none"),
    "nothing in place": ("special_zeta", {"overlapping_writes": True}, "overlapping_writes is about an in-place form, and torch has none"),
    "no gradients in place": ("special_zeta", {"adds_gradients": True}, "adds_gradients is about an in-place form"),
    "no filling": ("special_zeta", {"fills": 3}, "fills is a function of the call's arguments, got 3"),
    "several filled": ("linalg_ldl_factor_ex", {"fills": lambda args: 0}, "fills is for an operator with one tensor as its result"),
    "no operand": ("special_zeta.self_scalar", {"keeps_sharding": True}, "whose first argument is a tensor"),
    "no tensor to cast": ("special_zeta.self_scalar", {"only_casts": True}, "whose first argument is a tensor"),
    "no lists": ("special_zeta", {"on_lists": True}, "on_lists is for an operator that takes a list of tensors"),
    "no flag": ("special_zeta", {"on_lists": "yes"}, "on_lists is True or False, got 'yes'"),
    "no name": ("special_zeta", {"shown_as": "zeta"}, "shown_as is a name as namespace::op, got 'zeta'"),
}


@pytest.mark.parametrize("case", WRONG_FACTS)
def test_a_wrong_fact_is_an_error_that_says_what_is_allowed(case: str) -> None:
    name, facts, message = WRONG_FACTS[case]
    rows = dict(table.TABLE)
    with pytest.raises(RegistrationError, match=message):
        table.op(name, **facts)(lambda context: None)
    assert rows == table.TABLE


def test_overloads_of_an_operator_agree_about_autocast() -> None:
    families.load()
    with pytest.raises(RegistrationError, match="aten::mm runs under autocast in the dtype of autocast: .* got Autocast.FLOAT32"):
        table.register_op(table.OpSpec("aten::mm", lambda context: None, autocast=Autocast.FLOAT32), replace=True)


def test_what_is_declared_has_no_lowering() -> None:
    families.load()
    with pytest.raises(RegistrationError, match=r"aten::mul has a lowering, aten::mul.Tensor: declare its facts there"):
        table.without_lowering("mul", autocast=Autocast.LOWER)
    with pytest.raises(RegistrationError, match="aten::einsum is declared already"):
        table.without_lowering("einsum", autocast=Autocast.LOWER)


def test_a_declaration_says_something_that_is_allowed() -> None:
    with pytest.raises(RegistrationError, match="autocast is one of Autocast.LOWER"):
        table.without_lowering("linalg_ldl_solve", autocast="lower")  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="is one of TorchKernel.OF_PARTS, TorchKernel.KEPT, TorchKernel.REPLACED, got 'kept'"):
        table.without_lowering("linalg_ldl_solve", kernel="kept")  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="linalg_ldl_solve: say autocast= or kernel="):
        table.without_lowering("linalg_ldl_solve")
    assert "aten::linalg_ldl_solve" not in table.UNLOWERED


def test_declared_operators_have_no_lowering() -> None:
    families.load()
    assert not table.UNLOWERED.keys() & set(map(table.operator_of, table.TABLE))
    assert table.kernel_of("aten::_pack_padded_sequence") is TorchKernel.OF_PARTS and table.kernel_of("aten::add") is None

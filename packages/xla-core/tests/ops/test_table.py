"""The op table leaves out what this torch does not have, and only that."""

from __future__ import annotations

import pytest

from xla_core.base.errors import RegistrationError
from xla_core.base.private_torch import torch_version
from xla_core.ops import families, table

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
        table.register(table.OpSpec("aten::no_such_operation", lambda context: None))

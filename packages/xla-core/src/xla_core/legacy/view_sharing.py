"""Find tensors that look independent but share memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from xla_core.base.budgets import budget
from xla_core.base.nesting import Survey

AliasKey = Callable[[torch.Tensor], Hashable | None]

_SPARSE_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def alias_key(tensor: Any) -> Hashable | None:
    """A key that is equal for tensors that share memory; None for a tensor without memory. XLA tensors have it as `_xla_alias_id`."""
    if tensor.device.type == "xla":
        return ("xla", tensor._xla_alias_id)
    if tensor.layout is torch.sparse_coo:
        return alias_key(tensor._values())
    if tensor.layout in _SPARSE_COMPRESSED:
        return alias_key(tensor.values())
    if tensor.layout is not torch.strided:
        return None
    address: int = tensor.untyped_storage().data_ptr()
    return (tensor.device, address) if address else None


@budget()
def check_view_sharing(obj: Any, alias_key: AliasKey = alias_key) -> None:
    """Raise RuntimeError naming both tensors if two different tensors anywhere in `obj` share memory."""
    survey = Survey(obj, lambda value: isinstance(value, torch.Tensor))
    owners: dict[Hashable, torch.Tensor] = {}
    for tensor in survey.leaves:
        key = alias_key(tensor)
        if key is None:
            continue
        other = owners.setdefault(key, tensor)
        if other is not tensor:
            raise RuntimeError(
                f"{_name(survey, other)} and {_name(survey, tensor)} are different tensors that share memory; "
                "clone one of them, or use the same tensor object in both places"
            )


def _name(survey: Survey, tensor: torch.Tensor) -> str:
    dims = ", ".join(map(str, tensor.shape))
    return f"{survey.path(tensor)} ({tensor.dtype}[{dims}] on {tensor.device})"

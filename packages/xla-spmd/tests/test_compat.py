"""Every private name of torch that this package uses still does what it is used for: after an upgrade, look here first."""

from __future__ import annotations

import torch

from xla_spmd import _compat


def test_functions_of_torch_stay_what_they_are() -> None:
    class Plain(torch.Tensor):
        __torch_function__ = _compat.DISABLED_TORCH_FUNCTION

    assert type(torch.ones(2).as_subclass(Plain) + 1) is torch.Tensor, "torch's own rule would keep the class"


def test_trees() -> None:
    assert _compat.tree_map(lambda leaf: -leaf, ([1, (2,)], {"a": 3})) == ([-1, (-2,)], {"a": -3})
    values = _compat.tree_map(lambda leaf: leaf + 1, torch.max(torch.zeros(2, 2), 0))
    assert values.indices.tolist() == [1, 1] and isinstance(values, torch.return_types.max)

"""`linear` as one recorded operation and one in its gradient, where torch would split it into four and seven.

A kernel for our own key is all it takes: torch then uses its gradient for the whole instead of splitting. That gradient knows no
forward mode, so the kernel is taken away as long as a forward-mode level is open; and before torch 2.12 no complex numbers: there
it is split as ever.
"""

from __future__ import annotations

import torch

from xla_core.base import private_torch
from xla_core.engine.tensor.device import direct

_linear = torch.ops.aten.linear.default
_registered: list[torch.library.Library] = []


def _keep_whole() -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl("linear", direct(_linear), "PrivateUse1")
    _registered.append(library)


def _let_split() -> None:
    _registered.pop()._destroy()


def register() -> None:
    """Keep `linear` whole but in forward mode."""
    if private_torch.torch_version < (2, 12):
        return
    _keep_whole()
    private_torch.watch_forward_mode(_let_split, _keep_whole)

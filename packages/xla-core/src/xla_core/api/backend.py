"""Backend `xla` of `torch.distributed` and its init methods: registered when torch_xla is imported, implemented by xla-distributed.

Both are looked up in `torch_xla.distributed.xla_backend` when they are used; the error without that package says what to install.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch.distributed as dist


def _backend() -> Any:
    from torch_xla.distributed import xla_backend

    return xla_backend


def _create(options: Any, group_options: Any = None) -> Any:
    return _backend().create(options, group_options)


def _rendezvous(url: str, **options: Any) -> Any:
    return _backend().rendezvous(url, **options)


@cache
def register() -> None:
    """Register the backend `xla` and the init methods `xla://` and (its old name) `pjrt://`; nothing in a torch without distributed."""
    if not dist.is_available():
        return
    dist.Backend.register_backend("xla", _create, extended_api=True, devices=["xla"])
    for scheme in ("xla", "pjrt"):
        dist.register_rendezvous_handler(scheme, _rendezvous)  # type: ignore[attr-defined,no-untyped-call]

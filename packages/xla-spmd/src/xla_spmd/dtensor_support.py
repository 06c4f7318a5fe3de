"""The functions over torch.distributed.tensor, which takes a second to load: loaded when one is first needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch


class DTensorSupport(Protocol):
    """What `XLAShardedTensor` offers as a DTensor does. Module `xla_spmd.dtensors` has these functions."""

    def device_mesh_of_tensor(self, tensor: Any) -> Any:
        """The torch DeviceMesh that a wrapper is placed on."""

    def placements_of(self, tensor: Any) -> tuple[Any, ...]:
        """For each mesh axis, Shard or Replicate."""

    def spec_of(self, tensor: Any) -> Any:
        """The DTensorSpec of a wrapper."""

    def redistribute(
        self,
        tensor: Any,
        device_mesh: Any,
        placements: Sequence[Any] | None,
        forward_dtype: torch.dtype | None = None,
        backward_dtype: torch.dtype | None = None,
    ) -> Any:
        """A new wrapper of the same data, placed so."""

    def to_local(self, tensor: Any) -> torch.Tensor:
        """The plain tensor."""

    def full_tensor(self, tensor: Any) -> torch.Tensor:
        """The whole tensor, replicated."""


_loaders: list[Callable[[], DTensorSupport]] = []


def load_by(loader: Callable[[], DTensorSupport]) -> None:
    """Let `support` call `loader`: the package does so once, as this file knows nothing of those above it."""
    _loaders[:] = [loader]


def support() -> DTensorSupport:
    """The functions. From the first call on, torch.distributed.tensor makes sharded tensors on `xla` in SPMD mode."""
    return _loaders[0]()

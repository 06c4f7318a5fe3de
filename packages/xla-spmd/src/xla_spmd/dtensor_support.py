"""Load the functions that need torch.distributed.tensor when one is first used: importing it takes a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch


class DTensorSupport(Protocol):
    """The functions behind what `XLAShardedTensor` shares with DTensor; module `xla_spmd.dtensors` has them."""

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
        """A new wrapper of the same data, with these placements."""

    def to_local(self, tensor: Any) -> torch.Tensor:
        """The plain tensor."""

    def full_tensor(self, tensor: Any) -> torch.Tensor:
        """The whole tensor, replicated."""


_loaders: list[Callable[[], DTensorSupport]] = []


def load_by(loader: Callable[[], DTensorSupport]) -> None:
    """Let `support` call `loader`. The package calls this once, since this module must not import those that import it."""
    _loaders[:] = [loader]


def support() -> DTensorSupport:
    """The functions. From the first call on, torch.distributed.tensor makes sharded tensors on `xla` in SPMD mode."""
    return _loaders[0]()

"""Stage a state for `torch.distributed.checkpoint.async_save` as a copy on its devices, so that training can go on."""

from __future__ import annotations

from typing import Any

import torch

import torch_xla.core.xla_model as xm
from xla_serialization.checkpoint.snapshot import snapshot
from xla_serialization.checkpoint.state import FlatState


class SnapshotStager:
    """For `torch.distributed.checkpoint.async_save(state_dict, …, async_stager=SnapshotStager())`: torch's own reads memory of the host.

    Copies share the buffers of their tensors until training replaces those, and keep their shardings.
    """

    should_synchronize_after_execute = False

    def stage(self, state_dict: dict[str, Any], **_: Any) -> Any:
        """Copy the state, with its tensors on their devices. Runs what is pending; raises as a read of it would."""
        return xm.ToXlaTensorArena(_copies, _is_tensor).transform(state_dict)

    def synchronize_staging(self) -> None:
        """Do nothing: `stage` has copied all."""

    def close(self) -> None:
        """Do nothing: the stager keeps nothing."""


def _copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(snapshot(FlatState(None, {str(index): tensor for index, tensor in enumerate(tensors)})).tensors.values())


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)

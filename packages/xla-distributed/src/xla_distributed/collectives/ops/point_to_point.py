"""Send from one replica to another: `xm.send`, `xm.recv`, which XLA devices do not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from xla_core.abi.process import device_kind
from xla_distributed.errors import JobError


def _point_to_point(name: str) -> JobError:
    return _NoPointToPoint(
        f"{name}: {device_kind()} devices have no transfers between two replicas of a program; use xm.collective_permute, which all run"
    )


class _NoPointToPoint(JobError, NotImplementedError):
    """The hardware has no point-to-point transfers."""


def send(value: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Raises NotImplementedError: a program does not know the receiver."""
    raise _point_to_point("send")


def recv(output: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Raises NotImplementedError: a program does not know the sender; `collective_permute` sends among all replicas."""
    raise _point_to_point("recv")


OFFERED: dict[str, Callable[..., Any]] = {
    "torch_xla.core.xla_model.recv": recv,
    "torch_xla.core.xla_model.send": send,
}

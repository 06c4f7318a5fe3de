"""`torch_xla.core.xla_model`, what is neither device, step nor collective: ordinals, waiting, random state."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from xla_core.facade.conversion import plain
from xla_core.facade.deprecation import warn_once
from xla_core.facade.devices import local_index
from xla_core.facade.modules import xr
from xla_core.frontend.values import value_of
from xla_core.runtime import client, executor, rng
from xla_core.runtime.sync import block

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_AND = "and"
REDUCE_OR = "or"
REDUCE_MIN = "min"
REDUCE_MAX = "max"

_log = logging.getLogger("torch_xla")


def get_local_ordinal() -> int:
    """Number of this replica on its host."""
    return int(xr().local_ordinal())


def get_ordinal(defval: int = 0) -> int:
    """As `torch_xla.runtime.global_ordinal`; `defval` is ignored."""
    warn_once("get_ordinal", "torch_xla.core.xla_model.get_ordinal is deprecated, use torch_xla.runtime.global_ordinal instead.")
    return int(xr().global_ordinal())


def xrt_world_size(defval: int = 1) -> int:
    """As `torch_xla.runtime.world_size`; `defval` is ignored."""
    warn_once("xrt_world_size", "torch_xla.core.xla_model.xrt_world_size is deprecated, use torch_xla.runtime.world_size instead.")
    return int(xr().world_size())


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this replica is number 0 on its host, or (not `local`) in the job."""
    return bool((xr().local_ordinal() if local else xr().global_ordinal()) == 0)


def master_print(*args: object, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """`print` on replica 0 of the job only, or (`local`) of each host."""
    if is_master_ordinal(local=local):
        print(*args, file=sys.stdout if fd is None else fd, flush=flush)


def wait_device_ops(devices: Sequence[torch.device | str] = ()) -> None:
    """Wait for executions that were launched; launch none. Devices by `xla:<n>` or real name; none given: all of this process."""
    if not client.started():
        return
    indices = [local_index(device) for device in devices] or range(len(client.client().recorders))
    for index in indices:
        executor.wait(client.recorder_at(index))


def unlazy(tensors: Iterable[torch.Tensor]) -> None:
    """Compute the tensors and wait for them."""
    block([value_of(plain(tensor)) for tensor in tensors])


def set_rng_state(seed: int, device: torch.device | str | None = None) -> None:
    """Set the random state of a device, an unsigned 64-bit integer; None: the default device."""
    rng.set_seed(seed, client.recorder_of(device))


def get_rng_state(device: torch.device | str | None = None) -> int:
    """The present random state of a device, without running anything."""
    return client.recorder_of(device).seed


@contextmanager
def fork_rng(device: torch.device | str | None = None, enabled: bool = True) -> Iterator[None]:
    """Restore the random state of a device behind the block; does nothing unless `enabled`."""
    if not enabled:
        yield
        return
    recorder = client.recorder_of(device)
    state = recorder.seed
    try:
        yield
    finally:
        recorder.seed = state

"""Functions of `torch_xla.core.xla_model` besides devices, steps and collectives: ordinals, waiting, random state."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from xla_core.api.devices import local_index
from xla_core.api.job import global_ordinal, local_ordinal, world_size
from xla_core.api.reductions import ReduceOp
from xla_core.api.user_modules import xr
from xla_core.base.budgets import budget
from xla_core.base.deprecation import Deprecation
from xla_core.engine.runtime import client, executor
from xla_core.engine.runtime.sync import block
from xla_core.engine.tensor.plain import unwrapped
from xla_core.engine.tensor.values import value_of

REDUCE_SUM = ReduceOp.SUM.value
REDUCE_MUL = ReduceOp.MUL.value
REDUCE_AND = ReduceOp.AND.value
REDUCE_OR = ReduceOp.OR.value
REDUCE_MIN = ReduceOp.MIN.value
REDUCE_MAX = ReduceOp.MAX.value

_GET_ORDINAL = Deprecation("torch_xla.core.xla_model.get_ordinal", "torch_xla.runtime.global_ordinal", "xla-core 0.2.0", "2028-12")
_XRT_WORLD_SIZE = Deprecation("torch_xla.core.xla_model.xrt_world_size", "torch_xla.runtime.world_size", "xla-core 0.2.0", "2028-12")

_log = logging.getLogger("torch_xla")


@budget()
def get_local_ordinal() -> int:
    """The number of this replica among the replicas of its host, from 0; as `torch_xla.runtime.local_ordinal`."""
    return int(xr(local_ordinal)())


@budget()
def get_ordinal(defval: int = 0) -> int:
    """The number of this replica in the job, from 0. Deprecated: use `torch_xla.runtime.global_ordinal`; `defval` is ignored."""
    _GET_ORDINAL.warn()
    return int(xr(global_ordinal)())


@budget()
def xrt_world_size(defval: int = 1) -> int:
    """The number of replicas of the job. Deprecated: use `torch_xla.runtime.world_size`; `defval` is ignored."""
    _XRT_WORLD_SIZE.warn()
    return int(xr(world_size)())


@budget()
def is_master_ordinal(local: bool = True) -> bool:
    """True on replica 0 of each host; with `local=False`, on replica 0 of the job only."""
    return bool((xr(local_ordinal)() if local else xr(global_ordinal)()) == 0)


@budget(compiles=None, reads=None)
def master_print(*args: object, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """Print on replica 0 of the job only, or with `local` on replica 0 of each host; other replicas do nothing.

    args, flush: as for `print`. fd: an open file; None: stdout.
    """
    if is_master_ordinal(local=local):
        print(*args, file=sys.stdout if fd is None else fd, flush=flush)


@budget()
def wait_device_ops(devices: Sequence[torch.device | str] = ()) -> None:
    """Wait for launched executions; launches none. devices: `xla:<n>` or real names; empty: all devices of this process."""
    if not client.started():
        return
    indices = [local_index(device) for device in devices] or range(len(client.client().recorders))
    for index in indices:
        executor.wait(client.recorder_at(index))


@budget(compiles=None)
def unlazy(tensors: Iterable[torch.Tensor]) -> None:
    """Compute xla tensors, running only the operations that they need, and wait for them. Values stay on the device.

    All tensors of one device come from one execution. Raises as reading a value does.
    """
    block([value_of(unwrapped(tensor)) for tensor in tensors])


@budget()
def set_rng_state(seed: int, device: torch.device | str | None = None) -> None:
    """Set the random state of a device, an unsigned 64-bit integer; None: the default device. Raises ValueError for another number."""
    client.recorder_of(device).set_seed(seed)


@budget()
def get_rng_state(device: torch.device | str | None = None) -> int:
    """The random state of a device, an integer that `set_rng_state` takes; None: the default device. Runs nothing."""
    return client.recorder_of(device).seed


@budget()
@contextmanager
def fork_rng(device: torch.device | str | None = None, enabled: bool = True) -> Iterator[None]:
    """Restore the random state of a device after the block; does nothing unless `enabled`."""
    if not enabled:
        yield
        return
    recorder = client.recorder_of(device)
    state = recorder.seed
    try:
        yield
    finally:
        recorder.seed = state

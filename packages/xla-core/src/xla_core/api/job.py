"""The identity of this process and this thread in a job: processes, replicas, ordinals, SPMD mode.

The identity is needed often, so it is put together from launchers, plugins and the environment once, and kept once the devices run.
`set_topology`, `use_spmd` and a fork drop it; before the devices start, each call reads the environment anew. A thread may be in a replica
set of its own (`join`).
"""

from __future__ import annotations

import gc
import os
import socket
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from xla_core.api import plugins
from xla_core.base import config
from xla_core.base.budgets import budget
from xla_core.base.installation import SPMD
from xla_core.engine.runtime import client
from xla_core.engine.runtime import topology as launched
from xla_core.engine.runtime.topology import Topology
from xla_core.engine.tensor import sharding
from xla_core.engine.tensor.tensor import XLATensor


@dataclass(frozen=True, slots=True)
class _ProcessIdentity:
    """What this process is. is_replica: one of several replicas; devices: how many it addresses, 0 before they run."""

    topology: Topology
    spmd: bool
    is_replica: bool
    devices: int


_kept: _ProcessIdentity | None = None


def forget() -> None:
    """Drop the identity, to be put together anew at its next use: its sources have changed."""
    global _kept
    _kept = None


os.register_at_fork(after_in_child=forget)


def _identity(start: bool = False) -> _ProcessIdentity:
    """The identity from its present sources. start: start the devices of a replica, to count them."""
    global _kept
    here, spmd = _place(), config.USE_SPMD.get()
    is_replica = here.replicas and not spmd
    if start and is_replica and not client.started():
        client.client()
        return _identity()
    running = client.started()
    identity = _ProcessIdentity(here, spmd, is_replica, client.physical_device_count() if running else 0)
    if running:
        _kept = identity
    return identity


def _place() -> Topology:
    """The place set by a launcher or a plugin, else by torchrun's variables; else alone."""
    plugins.load()  # a plugin may set the variables
    explicit = launched.topology()
    count, local_count = config.WORLD_SIZE.get(), config.LOCAL_WORLD_SIZE.get()
    if explicit != Topology() or count is None or count == 1:
        return explicit
    rank, local_rank = config.RANK.get() or 0, config.LOCAL_RANK.get() or 0
    return Topology(rank, count, local_rank, local_count or local_rank + 1, replicas=True)


def topology() -> Topology:
    """The place of this process among the processes of its job."""
    return (_kept or _identity()).topology


def set_topology(place: Topology | None) -> Topology:
    """Set this process's place in its job (None: unknown). Returns the previous one. Running devices keep theirs."""
    previous = launched.set_topology(place)
    forget()
    return previous


@budget()
def process_count() -> int:
    """The number of processes of the job."""
    return topology().process_count


@budget()
def process_index() -> int:
    """The number of this process in the job, from 0."""
    return topology().process_index


@budget()
def local_process_count() -> int:
    """The number of processes of the job on this host."""
    return topology().local_count


@budget()
def host_index() -> int:
    """The index of this host, if all hosts run equally many processes."""
    return topology().process_index // topology().local_count


@budget()
def get_master_ip() -> str:
    """The address of the host of process 0: on TPUs of several hosts the address of host 0, else `MASTER_ADDR`, else 127.0.0.1."""
    launcher = plugins.launcher() if client.device_kind() == "TPU" else None
    if launcher is not None:
        hosts = launcher.worker_hosts()
        if len(hosts) > 1:
            return socket.gethostbyname(hosts[0])
    return config.MASTER_ADDR.get() or "127.0.0.1"


class _Membership(threading.local):
    """The replica set that this thread has joined, as real names of devices; None: the thread is the replica of its process."""

    devices: tuple[str, ...] | None = None


_membership = _Membership()


def join(names: Sequence[str] | None) -> None:
    """Put this thread into the replica set of these real names of devices; None or empty: a replica on its own.

    In a job of several processes that see one device each, a single name makes no set: the thread is the replica of its process.
    """
    only = len(names or ()) == 1 and topology().replicas
    _membership.devices = None if only else tuple(names or ())


def joined() -> tuple[str, ...]:
    """The replica set that this thread has joined; empty for none."""
    return _membership.devices or ()


def first_number() -> int:
    """The number in the real name of this process's `xla:0`."""
    return topology().process_index * len(client.client().devices)


@budget()
def world_size() -> int:
    """The number of replicas of the job: one per device of each process; 1 under SPMD, and in a process that belongs to no job."""
    devices = _membership.devices
    if devices is None:
        identity = _kept or _identity(start=True)
        return identity.topology.process_count * identity.devices if identity.is_replica else 1
    return 1 if is_spmd() else len(devices) or 1


@budget()
def global_ordinal() -> int:
    """The number of this replica in the job, from 0; 0 if there is only one."""
    devices = _membership.devices
    if devices is not None:
        if len(devices) < 2 or is_spmd():
            return 0
        mine = f"{client.client().kind}:{first_number() + client.current_index()}"
        if mine in devices:
            return devices.index(mine)
    identity = _kept or _identity(start=True)
    if devices is None and not identity.is_replica:
        return 0
    index = client.current_index() if identity.devices > 1 else 0
    return identity.topology.process_index * identity.devices + index


@budget()
def local_ordinal() -> int:
    """The number of this replica among the replicas of its host, from 0; under SPMD, the number of the process."""
    local_rank = topology().local_rank
    return local_rank if is_spmd() else local_rank * client.physical_device_count() + client.current_index()


@budget()
def addressable_device_count() -> int:
    """The number of devices that this process sees; 1 under SPMD."""
    return 1 if is_spmd() else client.physical_device_count()


@budget()
def local_device_count() -> int:
    """The number of devices of the job on this host, if all processes have equally many."""
    return topology().local_count * addressable_device_count()


@budget()
def is_spmd() -> bool:
    """True in SPMD mode: the one device `xla:0` stands for all physical ones. See `use_spmd`."""
    return config.USE_SPMD.get() if _kept is None else _kept.spmd


class _Mode:
    """Whether `use_spmd` of this process has set the variable."""

    ours = False


@budget()
def use_spmd(auto: bool | None = False) -> None:
    """Switch the process to SPMD mode: `xla:0` stands for all devices; the compiler splits programs over them.

    auto: set `XLA_AUTO_SPMD`: parameters that move to `xla` are sharded over all devices along their largest dimension that the devices
    divide evenly, other tensors along dimension 0; tensors that the devices do not divide are replicated. `mark_sharding` overrules it.
    """
    plugins.demand("torch_xla.runtime.use_spmd", SPMD)
    if config.USE_SPMD.is_set() and not _Mode.ours:
        warnings.warn("XLA_USE_SPMD is already set: torch_xla.runtime.use_spmd() alone is enough", stacklevel=2)
    if not is_spmd() and client.started() and any(type(item) is XLATensor for item in gc.get_objects()):
        warnings.warn("there are xla tensors from before SPMD mode: they count as replicated", stacklevel=2)
    if auto:
        config.AUTO_SPMD.set(True)
    config.USE_SPMD.set(True)
    _Mode.ours = True
    forget()
    if client.started() and not client.client().placements[0].is_mesh:
        client.set_current_index(0)
        sharding.reshard_live_data(client.enter_spmd().sharding)

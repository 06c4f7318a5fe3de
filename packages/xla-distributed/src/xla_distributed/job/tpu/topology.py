"""Divide the chips of TPU hosts among processes, by the variables that libtpu reads when devices start."""

from __future__ import annotations

import socket
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from xla_core.abi.process import client
from xla_core.abi.settings import Setting
from xla_distributed import settings
from xla_distributed.job.tpu import host as tpu
from xla_distributed.job.tpu.slices import MeshShape

FIRST_PORT = 8476
_LONGEST_NAME = 255
# Chips of one host of which nothing is known but their number.
_ALONE = {1: MeshShape(1, 1, 1), 4: MeshShape(2, 2, 1), 8: MeshShape(4, 2, 1)}


def configure_one_chip_topology() -> None:
    """Let this process, on its own, use one chip: the first unless TPU_VISIBLE_CHIPS says another."""
    _set({settings.TPU_CHIPS_PER_PROCESS_BOUNDS: "1,1,1", settings.TPU_PROCESS_BOUNDS: "1,1,1", settings.TPU_VISIBLE_CHIPS: "0"})


def configure_topology(local_rank: int, local_world_size: int, base_port: int = FIRST_PORT) -> None:
    """Let this process use one chip of its host, as one of `local_world_size` processes on each host of the slice.

    One process by itself keeps all chips. Variables that are set already stay. base_port: first of the ports at which the processes of a
    host find each other. Raises ValueError if the chips of a host are not as many as the processes.
    """
    if not 0 <= local_rank < local_world_size:
        raise ValueError(f"local_rank is {local_rank}, must be from 0 to local_world_size - 1, {local_world_size - 1}")
    if local_world_size > 1:
        _set(_one_chip_of_the_host(local_rank, local_world_size, base_port))


def _set(variables: dict[Setting[Any], str | int]) -> None:
    for row, value in variables.items():
        if not row.is_set():
            row.set(value)


def _one_chip_of_the_host(local_rank: int, local_world_size: int, base_port: int) -> dict[Setting[Any], str | int]:
    hosts = tpu.get_worker_ips()
    grid = _grid(local_world_size, len(hosts))
    # Ray, for one, chooses a chip by itself: the place of a process in the grid is that of its chip.
    chosen = settings.TPU_VISIBLE_CHIPS.get() or ""
    chip = int(chosen) if chosen.isdecimal() and int(chosen) < local_world_size else local_rank
    return {
        settings.TPU_CHIPS_PER_PROCESS_BOUNDS: "1,1,1",
        settings.TPU_PROCESS_BOUNDS: grid.text,
        settings.TPU_VISIBLE_CHIPS: str(chip),
        settings.TPU_PROCESS_ADDRESSES: ",".join(f"{host}:{base_port + index}" for host in hosts for index in range(local_world_size)),
        settings.TPU_PROCESS_PORT: base_port + chip,
        settings.CLOUD_TPU_TASK_ID: (tpu.worker_id() if len(hosts) > 1 else 0) * local_world_size + chip,
    }


def _grid(local_world_size: int, hosts: int) -> MeshShape:
    """The mesh of processes, one for each chip of the slice."""
    possible = list(tpu.possible_bounds())
    for bounds in possible:
        by_chip = bounds.by_chip()
        if by_chip.size == local_world_size * hosts and bounds.chips.size in (1, local_world_size):
            return by_chip
    if not possible and hosts == 1 and local_world_size in _ALONE:
        return _ALONE[local_world_size]
    described = " or ".join(f"{bounds.processes.text} hosts with {bounds.chips.text} chips each" for bounds in possible) or "unknown bounds"
    raise ValueError(
        f"{local_world_size} processes on each of {hosts} TPU hosts would not have one chip each: the slice has {described}. Start as many"
        " as a host has chips, or one for each host; TPU_ACCELERATOR_TYPE and TPU_WORKER_HOSTNAMES say what there is"
    )


def discover_master_worker_ip(use_localhost: bool = True) -> str:
    """Address of the host of process 0, which is host 0 of the slice; of one host by itself `localhost`, or its own address without that.

    Raises RuntimeError if the host is not known.
    """
    hosts = tpu.get_worker_ips()
    if len(hosts) == 1 and use_localhost:
        return "localhost"
    name = hosts[0] if len(hosts) > 1 else socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise RuntimeError(f"the address of {name}, host 0 of this TPU slice, is not known: {error}") from error


def spmd_find_master_ip(current_worker_hostname: str) -> str:
    """Broadcast the argument of the process with device 0 to all processes of an SPMD job, which call this together. Starts the devices.

    Raises ValueError for a name of more than 255 bytes.
    """
    name = current_worker_hostname.encode()
    if len(name) > _LONGEST_NAME:
        raise ValueError(f"the name of a host has at most {_LONGEST_NAME} bytes, got {len(name)}: {current_worker_hostname!r}")
    client()
    padded = np.frombuffer(name.ljust(_LONGEST_NAME, b"\0"), np.uint8)
    is_source = jax.process_index() == jax.devices()[0].process_index
    return bytes(np.asarray(multihost_utils.broadcast_one_to_all(padded, is_source), np.uint8)).rstrip(b"\0").decode()

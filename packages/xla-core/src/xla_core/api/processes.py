"""The processes of a job: how many, and which of them this is."""

from __future__ import annotations

import socket

from xla_core.api import hardware
from xla_core.api.replicas import place
from xla_core.api.tpu import host as tpu
from xla_core.base import config
from xla_core.base.budgets import budget


@budget()
def local_process_count() -> int:
    """Processes of the job on this host."""
    return place().local_count


@budget()
def process_count() -> int:
    """Processes of the job."""
    return place().process_count


@budget()
def process_index() -> int:
    """The number of this process in the job, from 0."""
    return place().process_index


@budget()
def host_index() -> int:
    """Number of this host, if all hosts run equally many processes."""
    return place().process_index // place().local_count


@budget()
def get_master_ip() -> str:
    """Address of the host of process 0: on TPUs of several hosts that of host 0, else `MASTER_ADDR`, else 127.0.0.1."""
    if hardware.device_type() == "TPU":
        hosts = tpu.get_worker_ips()
        if len(hosts) > 1:
            return socket.gethostbyname(hosts[0])
    return config.MASTER_ADDR.get() or "127.0.0.1"

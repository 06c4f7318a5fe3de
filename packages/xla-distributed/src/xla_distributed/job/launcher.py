"""What starts replicas, as the core asks for it: this module is a `xla_core.abi.plugins.Launcher`."""

from __future__ import annotations

from xla_distributed.job.launch import launch as launch


def worker_hosts() -> list[str]:
    """Names or addresses of the hosts of this TPU slice, in order; empty where the environment and the metadata server know none."""
    from xla_distributed.job.tpu import host

    return host.get_worker_ips()

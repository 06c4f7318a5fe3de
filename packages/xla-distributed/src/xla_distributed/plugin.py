"""What this package brings to the core: collectives among several replicas, and the launcher that starts them."""

from __future__ import annotations

from xla_core.abi.plugins import CollectiveBackend, Launcher, Plugin
from xla_core.abi.process import before_start
from xla_distributed.job import cluster


def _prepare() -> None:
    cluster.adopt()
    before_start(_connect)


def _connect() -> None:
    """Connect this process to its job before its devices start, if it has one."""
    from xla_distributed.job import bootstrap

    if bootstrap.is_in_job():
        from xla_distributed.job import connection

        connection.connect()


def _collectives() -> CollectiveBackend:
    from xla_distributed.collectives import backend

    return backend


def _launcher() -> Launcher:
    from xla_distributed.job import launcher

    return launcher


PLUGIN = Plugin(prepare=_prepare, collectives=_collectives, launcher=_launcher)

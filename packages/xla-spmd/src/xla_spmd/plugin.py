"""What this package brings to the core: shardings of SPMD mode."""

from __future__ import annotations

from xla_core.abi.plugins import Plugin, ShardingBackend


def _sharding() -> ShardingBackend:
    from xla_spmd import low_level

    return low_level


PLUGIN = Plugin(sharding=_sharding)

"""The implementations that this package offers, by the user's full names; the core asks for them once, when one is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def offered() -> Mapping[str, Callable[..., Any]]:
    """User's name → function."""
    from xla_core.abi.uploads import set_upload_policy
    from xla_spmd import low_level
    from xla_spmd.auto_sharding import sharding_of_upload
    from xla_spmd.op_sharding import OpSharding

    set_upload_policy(sharding_of_upload)
    lib = "torch_xla._XLAC."
    return {
        f"{lib}OpSharding": OpSharding,
        f"{lib}XlaShardingSpec": low_level.XlaShardingSpec,
        f"{lib}_get_local_shard_replica_and_indices": low_level.get_local_shard_replica_and_indices,
        f"{lib}_get_local_shards": low_level.get_local_shards,
        f"{lib}_get_xla_op_sharding": low_level.get_xla_op_sharding,
        f"{lib}_get_xla_sharding_spec": low_level.get_xla_sharding_spec,
        f"{lib}_get_xla_sharding_specs": low_level.get_xla_sharding_specs,
        f"{lib}_get_xla_sharding_type": low_level.get_xla_sharding_type,
        f"{lib}_global_tensor_from_cpu_shards": low_level.global_tensor_from_cpu_shards,
        f"{lib}_load_local_shards": low_level.load_local_shards,
        f"{lib}_mark_manual_sharding": low_level.mark_manual_sharding,
        f"{lib}_spmd_full_to_shard_shape": low_level.spmd_full_to_shard_shape,
        f"{lib}_spmd_shard_to_full_shape": low_level.spmd_shard_to_full_shape,
        f"{lib}_xla_annotate_custom_sharding": low_level.xla_mark_sharding,
        f"{lib}_xla_clear_sharding": low_level.xla_clear_sharding,
        f"{lib}_xla_mark_sharding": low_level.xla_mark_sharding,
        f"{lib}_xla_spmd_all_reduce": low_level.xla_spmd_all_reduce,
        f"{lib}_xla_spmd_reduce_scatter": low_level.xla_spmd_reduce_scatter,
    }

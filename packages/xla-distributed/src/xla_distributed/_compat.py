"""The private names of jax that this package cannot do without, each behind a name that says what it is for.

A test imports every one, so that an upgrade that takes one away fails there first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax._src import clusters

# What jax.distributed asks whether it runs under a cluster's manager, in its order. Each class has `is_env_present`,
# `get_coordinator_address`, `get_process_count`, `get_process_id` and `get_local_process_id`.
CLUSTERS: Mapping[str, Any] = {
    "Open MPI": clusters.OmpiCluster,
    "Slurm": clusters.SlurmCluster,
    "Cloud TPU on GKE": clusters.GkeTpuCluster,
    "Cloud TPU": clusters.GceTpuCluster,
    "Kubernetes": clusters.K8sCluster,
}

"""Names of `torch_xla._XLAC` that other distributions implement: of shardings, reports and profiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_core.api import plugins
from xla_core.base.installation import DEBUG, SPMD

_SHARDING = (
    "OpSharding XlaShardingSpec _xla_mark_sharding _mark_manual_sharding _xla_clear_sharding _get_xla_sharding_type "
    "_get_xla_sharding_spec _get_xla_op_sharding _spmd_full_to_shard_shape _spmd_shard_to_full_shape _get_local_shards "
    "_load_local_shards _get_local_shard_replica_and_indices _global_tensor_from_cpu_shards"
)
_REPORTS = {"_xla_metrics_report": "metrics_report", "_short_xla_metrics_report": "short_metrics_report", "profiler": "profiler"}
# Name → the distribution, what gives its backend, and the name there.
_OWNERS: dict[str, tuple[str, Callable[[], Any], str]] = {
    **{name: (SPMD, plugins.sharding, name.removeprefix("_")) for name in _SHARDING.split()},
    "_xla_annotate_custom_sharding": (SPMD, plugins.sharding, "xla_mark_sharding"),
    **{name: (DEBUG, plugins.reports, method) for name, method in _REPORTS.items()},
}
NAMES = tuple(_OWNERS)


def attribute(name: str) -> Any:
    """The `__getattr__` of `torch_xla._XLAC`: the plugin's function, or one that raises MissingPackageError when it is called.

    Raises AttributeError for other names.
    """
    if name not in _OWNERS:
        raise AttributeError(f"module 'torch_xla._XLAC' has no attribute {name!r}")
    owner, backend, method = _OWNERS[name]
    implementation = backend()
    if implementation is None:
        return _stand_in(name, owner)
    return implementation.profiler() if name == "profiler" else getattr(implementation, method)


def _get_xla_sharding_specs(tensors: Sequence[torch.Tensor]) -> list[str]:
    """The text of each tensor's sharding, empty without one. Raises MissingPackageError without xla-spmd."""
    text_of = attribute("_get_xla_sharding_spec")
    return [text_of(tensor) for tensor in tensors]


def _stand_in(name: str, owner: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise plugins.missing(f"torch_xla._XLAC.{name}", owner)

    refuse.__module__, refuse.__name__, refuse.__qualname__ = "torch_xla._XLAC", name, name
    refuse.__doc__ = f"Implemented by {owner}, which is not installed."
    return refuse

"""User's names whose implementation is in another distribution, looked up when they are first asked for.

For one replica on its own, a collective is the core's function (`api/single_replica.py`), with any plugins; for several replicas it is the
function that a plugin offers, else it raises MissingPackageError.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from xla_core.api.plugins import implementations, missing
from xla_core.api.single_replica import COLLECTIVES, Collective, Serves
from xla_core.api.user_modules import runtime
from xla_core.base.installation import DEBUG, DISTRIBUTED, SPMD

_XLAC = "torch_xla._XLAC"
_NAMES_OF_XLAC = {
    DISTRIBUTED: (
        "_get_all_reduce_token _set_all_reduce_token _xla_all_reduce _xla_all_reduce_inplace _xla_all_to_all _xla_collective_permute "
        "_xla_send _xla_recv _xla_all_gather _xla_all_gather_out _xla_all_gather_coalesced _xla_all_gather_coalesced_out "
        "_xla_reduce_scatter _xla_reduce_scatter_out _xla_reduce_scatter_coalesced _xla_reduce_scatter_coalesced_out"
    ),
    SPMD: (
        "OpSharding XlaShardingSpec _xla_mark_sharding _mark_manual_sharding _xla_clear_sharding _get_xla_sharding_type "
        "_get_xla_sharding_spec _get_xla_sharding_specs _get_xla_op_sharding _xla_annotate_custom_sharding _spmd_full_to_shard_shape "
        "_spmd_shard_to_full_shape _get_local_shards _load_local_shards _get_local_shard_replica_and_indices "
        "_global_tensor_from_cpu_shards _xla_spmd_all_reduce _xla_spmd_reduce_scatter"
    ),
    DEBUG: "profiler _xla_metrics_report _short_xla_metrics_report",
}
_COLLECTIVES: Mapping[tuple[str, str], Collective] = MappingProxyType({(row.module, row.name): row for row in COLLECTIVES})
# The distribution that implements a name, by the user's module and the name.
OWNERS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        **{(row.module, row.name): row.owner for row in COLLECTIVES},
        **{(_XLAC, name): owner for owner, names in _NAMES_OF_XLAC.items() for name in names.split()},
    }
)


def attribute(module: str, name: str) -> Any:
    """The `__getattr__` of a user's module: a plugin's implementation of `name`, else a function that decides when it is called.

    Raises AttributeError for a name that is neither in the table nor offered.
    """
    # Python and its tools look such names up: no reason to load plugins.
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    offers = implementations()
    entry = _attributes.get((module, name))
    if entry is None or entry[0] is not offers:
        entry = _attributes[module, name] = offers, _find(module, name, offers)
    return entry[1]


# Results of `_find` with the offers that they follow from, since each use of a name looks it up.
_attributes: dict[tuple[str, str], tuple[Mapping[str, Callable[..., Any]], Any]] = {}


def _find(module: str, name: str, offers: Mapping[str, Callable[..., Any]]) -> Any:
    row = _COLLECTIVES.get((module, name))
    offered = offers.get(f"{module}.{name}")
    if offered is not None:
        own = row is not None and row.single is not None and row.serves is Serves.ONE_REPLICA
        return _by_replicas(module, name, offered) if own else offered
    if row is not None and row.serves is Serves.ANY_NUMBER:
        return row.single
    if (module, name) not in OWNERS:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return _stand_in(module, name)


def _by_replicas(module: str, name: str, several: Callable[..., Any]) -> Callable[..., Any]:
    """Choose at each call: the core's function for one replica, unless SPMD mode means a collective between devices; else `several`."""
    row = _COLLECTIVES[module, name]
    single, between_devices = row.single or several, row.between_devices

    @functools.wraps(several)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Through the user's module, where functions may have been replaced.
        alone = runtime().world_size() == 1 and not (between_devices and runtime().is_spmd())
        return single(*args, **kwargs) if alone else several(*args, **kwargs)

    return call


def _stand_in(module: str, name: str) -> Callable[..., Any]:
    """The function of a wheel that is not installed, which raises MissingPackageError where it is needed."""
    row = _COLLECTIVES.get((module, name))
    owner = OWNERS[module, name]

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise missing(f"{module}.{name}", owner)

    refuse.__module__, refuse.__name__, refuse.__qualname__ = module, name, name
    refuse.__doc__ = f"Implemented by {owner}, which is not installed."
    return refuse if row is None or row.single is None else functools.wraps(row.single)(_by_replicas(module, name, refuse))


def names_of(module: str) -> list[str]:
    """The names in a user's module that other distributions implement, for its `__all__`."""
    return sorted(name for owned_module, name in OWNERS if owned_module == module)

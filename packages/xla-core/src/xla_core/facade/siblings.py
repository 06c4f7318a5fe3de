"""Facade names whose implementation is in another distribution: found by entry point, at first use.

A plugin is an entry point of group `xla_core.plugins`; it names a function without parameters that is called once and returns
what the plugin offers: user's names in full (`torch_xla.core.xla_model.all_reduce`) → functions. A collective of one replica on its
own gives what the API defines for it (`facade/single.py`), whoever is installed; of several, what is offered, else SiblingMissingError.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from xla_core import installation
from xla_core.errors import AbiVersionError, InstallationError, RegistrationError, SiblingMissingError
from xla_core.facade.modules import xr
from xla_core.facade.single import ANYWHERE, SINGLE
from xla_core.runtime.client import before_start

GROUP = "xla_core.plugins"
DISTRIBUTED, SPMD, DEBUG, SERIALIZATION = "xla-distributed", "xla-spmd", "xla-debug", "xla-serialization"


def _table() -> dict[str, str]:
    """User's name → the distribution that implements it."""
    table: dict[str, str] = {}

    def add(distribution: str, module: str, names: str) -> None:
        table.update({f"{module}.{name}": distribution for name in names.split()})

    add(
        DISTRIBUTED,
        "torch_xla.core.xla_model",
        "all_reduce _all_gather_using_all_reduce all_gather CoalescingBuckets all_gather_bucketized all_to_all collective_permute "
        "collective_broadcast send recv reduce_scatter reduce_scatter_bucketized _fetch_gradients reduce_gradients optimizer_step "
        "xla_rendezvous rendezvous do_on_ordinals mesh_reduce broadcast_master_param _get_all_reduce_token "
        "all_reduce_bucketized_gradients",
    )
    add(SERIALIZATION, "torch_xla.core.xla_model", "save")
    add(
        DISTRIBUTED,
        "torch_xla.core.functions",
        "all_reduce all_gather all_gather_summed distributed_mm SyncBatchNorm AllReduce AllGather AllReduceSumLayer",
    )
    add(DISTRIBUTED, "torch_xla", "launch")
    add(
        DISTRIBUTED,
        "torch_xla._XLAC",
        "_get_all_reduce_token _set_all_reduce_token _xla_all_reduce _xla_all_reduce_inplace _xla_all_to_all _xla_collective_permute "
        "_xla_send _xla_recv _xla_all_gather _xla_all_gather_out _xla_all_gather_coalesced _xla_all_gather_coalesced_out "
        "_xla_reduce_scatter _xla_reduce_scatter_out _xla_reduce_scatter_coalesced _xla_reduce_scatter_coalesced_out",
    )
    add(
        SPMD,
        "torch_xla._XLAC",
        "OpSharding XlaShardingSpec _xla_mark_sharding _mark_manual_sharding _xla_clear_sharding _get_xla_sharding_type "
        "_get_xla_sharding_spec _get_xla_sharding_specs _get_xla_op_sharding _xla_annotate_custom_sharding _spmd_full_to_shard_shape "
        "_spmd_shard_to_full_shape _get_local_shards _load_local_shards _get_local_shard_replica_and_indices "
        "_global_tensor_from_cpu_shards _xla_spmd_all_reduce _xla_spmd_reduce_scatter",
    )
    add(DEBUG, "torch_xla._XLAC", "profiler")
    return table


FACADE: Mapping[str, str] = MappingProxyType(_table())
# Names whose result for one replica is the core's to give.
COLLECTIVES = frozenset(name for name in SINGLE if FACADE.get(name) == DISTRIBUTED and name != "torch_xla.launch")

# Those that in SPMD mode mean the devices, in a manual region.
_BETWEEN_TENSORS = frozenset(
    name
    for name in COLLECTIVES
    if name.endswith((".all_reduce", "all_gather", "_all_gather_using_all_reduce", "all_gather_bucketized", "all_to_all"))
    or name.endswith(("collective_permute", "collective_broadcast", "reduce_scatter", "reduce_scatter_bucketized", "distributed_mm"))
)

# Modules that come with a sibling, and the names by which `torch_xla/_absent` stands in for them.
MODULES: Mapping[str, str] = MappingProxyType(
    {
        "torch_xla.distributed": DISTRIBUTED,
        "torch_xla.distributed.spmd": SPMD,
        "torch_xla.debug": DEBUG,
        "torch_xla.utils.serialization": SERIALIZATION,
        "torch_xla.experimental.distributed_checkpoint": SERIALIZATION,
        "torch_xla.experimental.spmd_fully_sharded_data_parallel": SPMD,
        "torch_xla.experimental.xla_sharding": SPMD,
        "torch_xla.experimental.xla_sharded_tensor": SPMD,
        "torch_xla._internal.pjrt": DISTRIBUTED,
        "torch_xla.experimental.pjrt": DISTRIBUTED,
        "torch_xla.experimental.pjrt_backend": DISTRIBUTED,
    }
)

_loading = threading.Lock()


@functools.cache
def implementations() -> Mapping[str, Callable[..., Any]]:
    """The implementations that installed plugins offer, by user's name. Raises RegistrationError if two offer the same name."""
    with _loading:
        offered: dict[str, Callable[..., Any]] = {}
        owner: dict[str, str] = {}
        for plugin, offers in installation.load(GROUP):
            for name, function in (offers() or {}).items():
                if name in offered:
                    raise RegistrationError(f"plugins {owner[name]} and {plugin} both offer {name}: uninstall one of them")
                offered[name], owner[name] = function, plugin
        return MappingProxyType(offered)


def missing(name: str, distribution: str) -> SiblingMissingError | AbiVersionError | InstallationError:
    """The error for a user's name whose distribution is not there, or does not fit. Its `name` is the package that is meant."""
    package = distribution.replace("-", "_")
    skewed = installation.unfit(distribution)
    if skewed is not None:
        return AbiVersionError(f"{name} is in {distribution}, which is left out: {skewed}", name=package)
    if installation.brought(distribution, name):
        text = f"{name} was installed with {distribution}, but its file is gone"
        return InstallationError(f"{text}: pip install --force-reinstall --no-deps {distribution}", name=package)
    if installation.is_installed(distribution):
        return SiblingMissingError(
            f"{name} is not in the {distribution} that is installed: pip install --upgrade {distribution}", name=package
        )
    text = f"{name} needs the distribution {distribution}, which is not installed: pip install {distribution}"
    return SiblingMissingError(text, name=package)


def demand(name: str, distribution: str) -> None:
    """Raise `missing` for a user's name of the core that is of no use without a sibling, unless that is there."""
    implementations()
    if not installation.is_installed(distribution) or installation.unfit(distribution):
        raise missing(name, distribution)


def find(name: str) -> Any:
    """Look up the implementation of the user's name `name`: a sibling's, else a function that decides when it is called.

    Raises AttributeError for a name that is neither in the table nor offered.
    """
    offered = implementations().get(name)
    if offered is not None:
        return _by_replicas(name, offered) if name in COLLECTIVES else offered
    if name not in FACADE:
        module, _, attribute = name.rpartition(".")
        raise AttributeError(f"module {module!r} has no attribute {attribute!r}")
    return ANYWHERE.get(name) or _stand_in(name)


def _alone(name: str) -> bool:
    """Whether a function meets nobody: there is one replica, and in SPMD mode no collective between the devices is meant."""
    return xr().world_size() == 1 and not (name in _BETWEEN_TENSORS and xr().is_spmd())


@functools.cache
def _by_replicas(name: str, several: Callable[..., Any]) -> Callable[..., Any]:
    single = SINGLE[name]

    @functools.wraps(several)
    def call(*args: Any, **kwargs: Any) -> Any:
        return single(*args, **kwargs) if _alone(name) else several(*args, **kwargs)

    return call


@functools.cache
def _stand_in(name: str) -> Callable[..., Any]:
    single = SINGLE.get(name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if single is None or not _alone(name):
            raise missing(name, FACADE[name])
        return single(*args, **kwargs)

    call.__module__, _, call.__name__ = name.rpartition(".")
    call.__qualname__ = call.__name__
    call.__doc__ = f"Implemented by {FACADE[name]}, which is not installed."
    return call if single is None else functools.wraps(single)(call)


def attribute(module: str, name: str) -> Any:
    """The `__getattr__` of a module with such names."""
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return find(f"{module}.{name}")


def refuse_import(module: str) -> None:
    """Raise SiblingMissingError for a user's module that no installed distribution provides."""
    parent = module
    while parent and parent not in MODULES:
        parent = parent.rpartition(".")[0]
    if parent:
        raise missing(module, MODULES[parent])


def _load() -> None:
    implementations()


before_start(_load)  # a plugin may have to connect the process first

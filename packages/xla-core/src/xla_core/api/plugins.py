"""Other distributions as plugins of the core: found by entry point, loaded once, at first use.

A plugin is an entry point of group `xla_core.plugins`: a function without parameters that is called once and returns the functions that
the plugin offers, by the full names under which users know them (`torch_xla.core.xla_model.all_reduce`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any, NoReturn

from xla_core.base import installation
from xla_core.base.errors import AbiVersionError, InstallationError, MissingPackageError, RegistrationError
from xla_core.base.installation import DEBUG, DISTRIBUTED, SERIALIZATION, SPMD
from xla_core.base.private_torch import before_device_meshes
from xla_core.engine.runtime.client import before_start

GROUP = "xla_core.plugins"

# Modules of `torch_xla` that other distributions bring.
_MODULES_OF = {
    DEBUG: "debug",
    DISTRIBUTED: (
        "_internal.pjrt _internal.rendezvous _internal.tpu experimental.pjrt experimental.pjrt_backend distributed.data_parallel "
        "distributed.fsdp distributed.parallel_loader distributed.xla_backend distributed.xla_dist distributed.xla_multiprocessing "
        "distributed.zero_redundancy_optimizer"
    ),
    SERIALIZATION: "experimental.distributed_checkpoint utils.serialization",
    SPMD: "distributed.spmd experimental.spmd_fully_sharded_data_parallel experimental.xla_sharded_tensor experimental.xla_sharding",
}
MODULES: Mapping[str, str] = MappingProxyType(
    {f"torch_xla.{name}": owner for owner, names in _MODULES_OF.items() for name in names.split()}
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


def missing(name: str, distribution: str) -> MissingPackageError | AbiVersionError | InstallationError:
    """The error for a user's name whose distribution is missing or does not fit. Its `name` is the package to install."""
    package = distribution.replace("-", "_")
    skewed = installation.unfit(distribution)
    if skewed is not None:
        return AbiVersionError(f"{name} is in {distribution}, which is left out: {skewed}", name=package)
    if installation.brought(distribution, name):
        text = f"{name} was installed with {distribution}, but its file is gone"
        return InstallationError(f"{text}: pip install --force-reinstall --no-deps {distribution}", name=package)
    if installation.is_installed(distribution):
        return MissingPackageError(
            f"{name} is not in the {distribution} that is installed: pip install --upgrade {distribution}", name=package
        )
    text = f"{name} needs the distribution {distribution}, which is not installed: pip install {distribution}"
    return MissingPackageError(text, name=package)


def demand(name: str, distribution: str) -> None:
    """Raise `missing` for a user's name of the core that needs a plugin, unless the plugin is installed."""
    implementations()
    if not installation.is_installed(distribution) or installation.unfit(distribution):
        raise missing(name, distribution)


class MissingModules(MetaPathFinder, InspectLoader):
    """Python's last finder: a module of `MODULES` that reaches it is in no installed distribution. Loading it raises `missing`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """A spec for a module of `MODULES`."""
        return ModuleSpec(name, self) if name in MODULES else None

    def get_source(self, name: str) -> NoReturn:
        """Raise the error that names the distribution to install: by an import, and by `python -m`."""
        raise missing(name, MODULES[name])


def _load() -> None:
    implementations()


before_start(_load)  # a plugin may have to connect the process first
before_device_meshes("xla", _load)  # or have device meshes of its own

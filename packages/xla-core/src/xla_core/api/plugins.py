"""Other distributions as plugins of the core: found by entry point, loaded once, at first use.

An entry point of group `xla_core.plugins` names a `backends.Plugin`. Each of its parts is loaded when it is first needed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any, NoReturn

import torch

from xla_core.api.backends import CheckpointWriter, CollectiveBackend, Launcher, Plugin, Reports, ShardingBackend
from xla_core.base import installation
from xla_core.base.errors import AbiVersionError, InstallationError, MissingPackageError, RegistrationError
from xla_core.base.installation import DEBUG, DISTRIBUTED, SERIALIZATION, SPMD
from xla_core.base.private_torch import before_device_meshes
from xla_core.engine.placement.sharding import Sharding
from xla_core.engine.runtime.client import before_start
from xla_core.engine.tensor.sharding import set_upload_policy

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

_NAMES_OF_PARTS = tuple(field.name for field in fields(Plugin) if field.name != "prepare")
_loading = threading.Lock()


@functools.cache
def load() -> Mapping[str, Callable[[], Any]]:
    """Load the installed plugins and prepare them; the functions that give their parts, by the field of `Plugin`.

    Raises RegistrationError if two bring the same part.
    """
    with _loading:
        parts: dict[str, Callable[[], Any]] = {}
        owners: dict[str, str] = {}
        for owner, plugin in installation.load(GROUP):
            if not isinstance(plugin, Plugin):
                raise RegistrationError(f"the entry point {owner} of {GROUP} names a {type(plugin).__name__}: name an abi.plugins.Plugin")
            for part in _NAMES_OF_PARTS:
                give = getattr(plugin, part)
                if give is None:
                    continue
                if part in parts:
                    raise RegistrationError(f"plugins {owners[part]} and {owner} both bring {part}: uninstall one of them")
                parts[part], owners[part] = functools.cache(give), owner
            if plugin.prepare is not None:
                plugin.prepare()
        return MappingProxyType(parts)


def _part(name: str) -> Any:
    give = load().get(name)
    return None if give is None else give()


@functools.cache
def collectives() -> CollectiveBackend | None:
    """The collectives of several replicas; None: no plugin has them."""
    backend: CollectiveBackend | None = _part("collectives")
    return backend


def launcher() -> Launcher | None:
    """What starts replicas; None: no plugin does."""
    starter: Launcher | None = _part("launcher")
    return starter


def sharding() -> ShardingBackend | None:
    """The shardings of SPMD mode; None: no plugin has them."""
    backend: ShardingBackend | None = _part("sharding")
    return backend


def reports() -> Reports | None:
    """Reports and profiles; None: no plugin makes any."""
    maker: Reports | None = _part("reports")
    return maker


def checkpoints() -> CheckpointWriter | None:
    """What writes for `xm.save`; None: no plugin does."""
    writer: CheckpointWriter | None = _part("checkpoints")
    return writer


def forget() -> None:
    """Look for plugins anew when one is next asked for; for tests."""
    load.cache_clear()
    collectives.cache_clear()


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
    load()
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


def _sharding_of_upload(tensor: torch.Tensor) -> Sharding | None:
    backend = sharding()
    return None if backend is None else backend.sharding_of_upload(tensor)


before_start(load)  # a plugin may have to connect the process first
before_device_meshes("xla", load)  # or have device meshes of its own
set_upload_policy(_sharding_of_upload)

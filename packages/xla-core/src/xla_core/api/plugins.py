"""Other distributions as plugins of the core: found by entry point, loaded once, at first use.

A plugin is an entry point of group `xla_core.plugins`; it names a function without parameters that is called once and returns
what the plugin offers: user's names in full (`torch_xla.core.xla_model.all_reduce`) → functions.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from xla_core.base import installation
from xla_core.base.errors import AbiVersionError, InstallationError, MissingPackageError, RegistrationError
from xla_core.base.installation import DEBUG, DISTRIBUTED, SERIALIZATION, SPMD
from xla_core.base.private_torch import before_device_meshes
from xla_core.engine.runtime.client import before_start

GROUP = "xla_core.plugins"

# Modules that come with a plugin, and the names by which `torch_xla/_missing_packages` stands in for them.
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
        "torch_xla._internal.rendezvous": DISTRIBUTED,
        "torch_xla._internal.tpu": DISTRIBUTED,
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


def missing(name: str, distribution: str) -> MissingPackageError | AbiVersionError | InstallationError:
    """The error for a user's name whose distribution is not there, or does not fit. Its `name` is the package that is meant."""
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
    """Raise `missing` for a user's name of the core that is of no use without a plugin, unless that is there."""
    implementations()
    if not installation.is_installed(distribution) or installation.unfit(distribution):
        raise missing(name, distribution)


def refuse_import(module: str) -> None:
    """Raise MissingPackageError for a user's module that no installed distribution provides."""
    parent = module
    while parent and parent not in MODULES:
        parent = parent.rpartition(".")[0]
    if parent:
        raise missing(module, MODULES[parent])


def _load() -> None:
    implementations()


before_start(_load)  # a plugin may have to connect the process first
before_device_meshes("xla", _load)  # or have meshes of its own

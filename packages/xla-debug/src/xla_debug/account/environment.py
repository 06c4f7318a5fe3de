"""What a bug report needs to know of an installation: versions, platform, settings. Starts no device."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from xla_debug._version import __version__
from xla_debug.account.schema import Environment
from xla_debug.core import abi

_PACKAGES = ("xla-core", "xla-distributed", "xla-spmd", "xla-serialization", "torch_xla")
_BELOW = ("torch", "jax", "jaxlib", "numpy", "libtpu")
_PLUGINS = "jax-"  # such as jax-cuda13-plugin
# What a name with one of these words holds is nobody's business.
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def environment() -> Environment:
    """This process's Python, platform, the versions of what is installed, and those variables of our packages that are set."""
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        versions=_versions(),
        settings={name: _shown(name) for name in _names_set()},
    )


def _versions() -> dict[str, str]:
    versions = {"xla-debug": __version__}
    plugins = sorted({name for found in metadata.distributions() if (name := found.name or "").startswith(_PLUGINS)})
    for name in (*_PACKAGES, *_BELOW, *plugins):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # is not installed
    return versions


def _names_set() -> list[str]:
    """The variables of all installed packages that have a value."""
    return sorted({setting.name for rows in abi.installed_settings().values() for setting in rows if setting.is_set()})


def _shown(name: str) -> str:
    return "(hidden)" if any(word in name.split("_") for word in _SECRET) else os.environ[name]

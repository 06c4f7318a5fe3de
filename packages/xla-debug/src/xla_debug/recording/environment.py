"""Describe an installation for bug reports: versions, platform, settings. Starts no device."""

from __future__ import annotations

import platform
from importlib import metadata

from xla_debug._version import __version__
from xla_debug.run_report.schema import Environment
from xla_debug.secret_values import hide_value

_PACKAGES = ("xla-core", "xla-distributed", "xla-spmd", "xla-serialization", "torch_xla")
_DEPENDENCIES = ("torch", "jax", "jaxlib", "numpy", "libtpu")
_PLUGINS = "jax-"  # such as jax-cuda13-plugin


def environment() -> Environment:
    """Describe this process: Python, platform, installed versions, and those of our packages' variables that are set."""
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        versions=versions(),
        settings=settings(),
    )


def versions() -> dict[str, str]:
    """The installed versions of our packages and of their dependencies. Works without a working core."""
    installed = {"xla-debug": __version__}
    plugins = sorted({name for distribution in metadata.distributions() if (name := distribution.name or "").startswith(_PLUGINS)})
    for name in (*_PACKAGES, *_DEPENDENCIES, *plugins):
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def settings() -> dict[str, str]:
    """The variables of all installed packages that are set, with secrets hidden. Raises ImportError if the core does not work."""
    # Not at the top, since `versions` must work without a working core.
    from xla_debug.core import abi

    texts = {setting.name: setting.text() for rows in abi.settings.installed_settings().values() for setting in rows}
    return {name: hide_value(name, text) for name, text in sorted(texts.items()) if text}

"""The environment of an installation, for bug reports: versions, platform, settings. Starts no device."""

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
    """This process's Python, platform, the versions of what is installed, and those variables of our packages that are set."""
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        versions=versions(),
        settings=settings(),
    )


def versions() -> dict[str, str]:
    """The versions of our packages, and of those below, that are installed. Does not need a core that works."""
    installed = {"xla-debug": __version__}
    plugins = sorted({name for distribution in metadata.distributions() if (name := distribution.name or "").startswith(_PLUGINS)})
    for name in (*_PACKAGES, *_DEPENDENCIES, *plugins):
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def settings() -> dict[str, str]:
    """The variables of all installed packages that are set, secrets hidden. Raises ImportError where the core cannot be used."""
    # Not at the top: `versions` must work where the core does not.
    from xla_debug.core import abi

    texts = {setting.name: setting.text() for rows in abi.settings.installed_settings().values() for setting in rows}
    return {name: hide_value(name, text) for name, text in sorted(texts.items()) if text}

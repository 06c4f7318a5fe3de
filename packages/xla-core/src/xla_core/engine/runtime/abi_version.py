"""The version of the core's ABI, and the check that other packages make when they are imported."""

from __future__ import annotations

from xla_core._version import __version__
from xla_core.base.errors import AbiVersionError

ABI_VERSION = (4, 1)
"""(major, minor): a minor adds names or duties of the core, a major changes or removes some. Independent of the package's version;
a new one needs a new version, whose release records both (`abi/VERSION.json`)."""


def require(version: tuple[int, int], distribution: str) -> None:
    """Check that this core serves a wheel written for ABI `version`.

    Raises AbiVersionError (an ImportError) that names which of the two wheels to up- or downgrade.
    """
    major, minor = version
    have = ".".join(map(str, ABI_VERSION))
    if ABI_VERSION[0] == major and ABI_VERSION[1] >= minor:
        return
    needs = f"{distribution} needs ABI {major}.{minor} of xla-core, version {__version__} has {have}"
    if ABI_VERSION < version:
        raise AbiVersionError(f"{needs}: upgrade xla-core (pip install --upgrade xla-core) or install an older {distribution}")
    raise AbiVersionError(f"{needs}: upgrade {distribution} (pip install --upgrade {distribution}) or install an older xla-core")

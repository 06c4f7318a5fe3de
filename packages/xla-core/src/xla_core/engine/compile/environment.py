"""What compiled code depends on besides the program: where all of it is equal, one process runs what another compiled."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import Distribution, entry_points
from pathlib import Path

from xla_core.base import config
from xla_core.base.private_jax import jaxlib_version
from xla_core.base.processor import instruction_sets
from xla_core.engine.compile.options import compiler_options
from xla_core.engine.placement.target import Target


def environment(target: Target) -> dict[str, str]:
    """Texts by name, of the compiler and the devices. A target has the same as the process that it stands for."""
    device = target.devices[0]
    count = device.client.device_count() if target.attached else len(target.devices)
    # A GPU's client says its version of CUDA, which is that of the library, and a topology the model, which is its kind.
    version = "" if device.platform == "gpu" else device.client.platform_version
    return {
        "jaxlib": jaxlib_version,
        "platform": device.platform,
        "kind of device": device.device_kind,
        "number of devices": str(count),
        "version of the platform": version,
        "compiler": "\n".join(_native_libraries(device.platform)),
        "compiler options": str(sorted(compiler_options(device.platform, has_loops=True).items())),
        "XLA_FLAGS": config.XLA_FLAGS.get() or "",
        "LIBTPU_INIT_ARGS": (config.LIBTPU_INIT_ARGS.get() or "") if device.platform == "tpu" else "",
        "processor": _processor() if device.platform == "cpu" else "",
    }


_LONGEST_SHOWN = 60


def differences(first: dict[str, str], second: dict[str, str], in_first: str = "there", in_second: str = "here") -> list[str]:
    """What differs, in words: `jaxlib is 0.10.1 there and 0.10.2 here`."""
    said = []
    for name, after in second.items():
        before = first.get(name, "")
        if before == after:
            continue
        if max(len(before), len(after)) > _LONGEST_SHOWN:  # flags: those that differ
            words, more = before.split(), after.split()
            before, after = " ".join(word for word in words if word not in more), " ".join(word for word in more if word not in words)
        short = max(len(before), len(after)) <= _LONGEST_SHOWN and (before or after)
        said.append(f"{name} is {before or 'unset'} {in_first} and {after or 'unset'} {in_second}" if short else f"{name} is another")
    return said


@cache
def _native_libraries(platform: str) -> list[str]:
    """Digests of the libraries that compile and run programs, since builds of one version differ; recorded in wheels, else read.

    Those of other platforms do not count: where programs are compiled for devices that are elsewhere, they are not the same.
    """
    plugins = {entry.dist.name for entry in entry_points(group="jax_plugins") if entry.dist is not None}
    brought_by = {"cpu": {"jaxlib"}, "tpu": {"libtpu"}}.get(platform, plugins)
    digests = []
    for name in sorted(brought_by):
        for file in next((distribution.files for distribution in Distribution.discover(name=name)), None) or ():
            if file.suffix == ".so":
                digests.append(f"{name} {file} {file.hash.value if file.hash else tree_digest(Path(str(file.locate())))}")
    return digests


def _processor() -> str:
    """Instruction sets of this processor: programs for the CPU are native code."""
    sets = " ".join(sorted(instruction_sets()))
    return f"{platform.machine()} {hashlib.sha256(sets.encode()).hexdigest() if sets else platform.processor()}"


@cache
def tree_digest(top: Path) -> str:
    """Digest of a file, or of the source in a folder: a changed lowering must not find programs of its old version."""
    digest = hashlib.sha256()
    for file in [top] if top.is_file() else sorted(top.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()

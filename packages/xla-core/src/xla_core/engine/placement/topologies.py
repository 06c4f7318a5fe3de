"""Targets by name: devices that only a compiler knows, `v5e:4x4` or `h100x8`, and processors of this machine as if they took no data.

The compilers come with libtpu and jax's CUDA plugin (`pip install 'xla-core[targets]'`), through `jax.experimental.topologies`; that for
processors is jaxlib's own.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import MappingProxyType
from typing import Any

import jax

from xla_core.base import timer_signal
from xla_core.base.accelerators import GPUS, TPUS, GpuKind, TpuKind
from xla_core.base.errors import UnknownDeviceError
from xla_core.base.private_jax import answer_for_missing_cuda_libraries
from xla_core.engine.placement.target import Target

_NAME = re.compile(r"(?P<kind>[a-z0-9]+?)(?::(?P<shape>\d+(?:x\d+)*)|-(?P<cores>\d+)|x(?P<devices>\d+))?")
# libtpu asks the cloud's metadata server and these variables for the slice that it runs on, which there is none of.
_NO_SLICE: Mapping[str, str] = MappingProxyType(
    {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nothing is locked: several processes may compile
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_TOPOLOGY": "2x2",
        "TPU_HOST_BOUNDS": "1,1,1",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
    }
)


def target_named(name: str) -> Target:
    """The target called `v5e:4x4` (TPUs by their shape), `v5e-16` (by their number, in the standard shape), `h100` or `h100x8`, `cpu:4`.

    Raises UnknownDeviceError for a name that none has, a shape that there is not, and if the compiler is not installed.
    """
    return _target(name.strip().lower())


@cache
def _target(name: str) -> Target:
    match = _NAME.fullmatch(name)
    if match is not None and match["kind"] == "cpu" and (match["shape"] or "1").isdecimal() and not match["cores"] and not match["devices"]:
        return _processors(name, int(match["shape"] or 1))
    if match is None or match["kind"] not in (*TPUS, *GPUS):
        raise UnknownDeviceError(
            f"there is no target {name!r}. TPUs: {', '.join(TPUS)}, with a shape as in v5e:4x4 or v4:2x2x4, or a number as in v5e-16; "
            f"GPUs: {', '.join(GPUS)}, with a number of up to 8 as in h100x8; this machine's processor as so many devices: cpu:4"
        )
    kind = match["kind"]
    if kind in GPUS:
        if match["shape"] or match["cores"] or not 1 <= int(match["devices"] or 1) <= 8:
            raise UnknownDeviceError(f"the target {name!r} does not exist: a host has one to eight GPUs, {kind} or {kind}x2 to {kind}x8")
        return _gpus(name, GPUS[kind], int(match["devices"] or 1))
    if match["devices"]:
        raise UnknownDeviceError(f"the target {name!r} does not exist: TPUs have a shape, such as {kind}:{_times(standard_shape(kind, 4))}")
    chips = 1 if match["cores"] is None else _chips(kind, int(match["cores"]), name)
    shape = standard_shape(kind, chips) if match["shape"] is None else tuple(int(size) for size in match["shape"].split("x"))
    return _tpus(name, kind, shape)


def standard_shape(kind: str, chips: int) -> tuple[int, ...]:
    """The shape in which clouds offer so many chips of a generation: as near to a square or cube as it goes, the last axes longest."""
    dimensions = TPUS[kind].dimensions
    shape = [1] * dimensions
    for axis in [0, 1] if dimensions == 3 else []:  # a host has 2x2x1
        if math.prod(shape) < chips:
            shape[axis] = 2
    while math.prod(shape) < chips:
        least = min(shape)
        shape[max(axis for axis in range(dimensions) if shape[axis] == least)] *= 2
    return tuple(shape)


def _chips(kind: str, count: int, name: str) -> int:
    """How many chips a number in a name means. Raises UnknownDeviceError for one that no slice has."""
    per_chip = TPUS[kind].cores_per_chip or 1
    if count % per_chip or count // per_chip & (count // per_chip - 1) or not count:
        counted = "TensorCores, two for each chip," if per_chip > 1 else "chips"
        raise UnknownDeviceError(f"the target {name!r} does not exist: {kind} counts {counted} in powers of two; or give the shape")
    return count // per_chip


def _tpus(name: str, generation: str, shape: tuple[int, ...]) -> Target:
    kind: TpuKind = TPUS[generation]
    if len(shape) != kind.dimensions or not all(shape):
        example = f"{generation}:{_times(standard_shape(generation, 16))}"
        raise UnknownDeviceError(f"the target {name!r} does not exist: {generation} has {kind.dimensions} dimensions, as in {example}")
    host = [min(size, most) for size, most in zip((*shape, 1)[:3], (2, 2, 1), strict=True)]
    options = {"chip_config_name": kind.config, "chips_per_host_bounds": tuple(host)}
    topology = _described("libtpu", name, f"{kind.topology}:{_times(shape)}", "tpu", options)
    timer_signal.tell_python_that_it_is_ignored()
    return Target(name, tuple(topology.devices), shape, kind.memory_bytes, attached=False)


def _gpus(name: str, kind: GpuKind, count: int) -> Target:
    options = {"target_config": _config(kind), "topology": f"1x1x{count}"}
    topology = _described("jax_cuda13_plugin", name, name, "cuda", options)
    answer_for_missing_cuda_libraries()
    return Target(name, tuple(topology.devices), (count,), kind.memory_bytes, attached=False)


def _processors(name: str, count: int) -> Target:
    """This machine's processor as so many devices. Raises UnknownDeviceError if jax has been started with fewer."""
    with suppress(RuntimeError):  # jax has devices already: they may be enough
        jax.config.update("jax_num_cpu_devices", count)
    devices = tuple(jax.local_devices(backend="cpu"))[:count]
    if not 0 < count == len(devices):
        raise UnknownDeviceError(
            f"the target {name!r} has {count} devices, and jax was started with {len(jax.local_devices(backend='cpu'))}"
        )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // count
    return Target(name, devices, (count,), memory, attached=False)


def _described(module: str, name: str, topology: str, platform: str, options: Mapping[str, Any]) -> Any:
    """The topology of a target. Raises UnknownDeviceError without its compiler (a Python module), or if that refuses the shape."""
    if importlib.util.find_spec(module) is None:
        raise UnknownDeviceError(f"the compiler for {name} is not installed: pip install 'xla-core[targets]'")
    # Otherwise jax starts every backend that is installed, and waits for chips that are not there.
    if getattr(jax.config, "jax_platforms", None) is None:
        jax.config.update("jax_platforms", "cpu")
    if platform == "tpu":
        for variable, text in _NO_SLICE.items():
            os.environ.setdefault(variable, text)
    from jax.experimental import topologies

    describe: Callable[..., Any] = topologies.get_topology_desc
    try:
        return describe(topology_name=topology, platform=platform, **options)
    except RuntimeError as error:
        # Plugins are loaded once, when jax first has devices; that of CUDA not without its libraries, unless JAX_PLATFORMS leaves it out.
        late = "; set JAX_PLATFORMS=cpu before the program starts" if "not implemented" in str(error) else ""
        raise UnknownDeviceError(f"the compiler for {name} refuses it: {error}{late}") from error


def _config(kind: GpuKind) -> str:
    """What XLA's compiler for GPUs asks of a device, as the text of a `GpuTargetConfigProto`."""
    major, minor = kind.capability
    return f"""
        gpu_device_info {{
          threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
          thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
          block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
          registers_per_core_limit: 65536 registers_per_block_limit: 65536
          shared_memory_per_block: 49152 shared_memory_per_core: {kind.shared_bytes} shared_memory_per_block_optin: {kind.block_bytes}
          core_count: {kind.cores} fpus_per_core: {kind.fpus} clock_rate_ghz: {kind.clock_ghz}
          memory_bandwidth: {kind.memory_bandwidth} device_memory_size: {kind.memory_bytes} l2_cache_size: {kind.l2_bytes}
          cuda_compute_capability {{ major: {major} minor: {minor} }}
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
        runtime_version {{ major: 13 minor: 0 patch: 0 }}
        device_description_str: "{kind.model}"
    """


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))

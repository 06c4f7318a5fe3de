"""Kinds of accelerators and what they have: facts about hardware, by the names under which people know it.

Sources: https://docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm and the page of each TPU version there; the data sheets of
NVIDIA's A100 (SXM4 80 GB), H100 (SXM5), H200 (SXM) and B200.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class TpuKind:
    """A generation of TPUs.

    dimensions: of its torus. memory_bytes: of one device, as far as programs may use it. devices_per_chip: JAX devices of a chip.
    cores_per_chip: TensorCores, which the number in a name such as `v4-8` counts; 0: it counts chips. config: how the compiler joins cores.
    """

    topology: str
    dimensions: int
    memory_bytes: int
    devices_per_chip: int = 1
    cores_per_chip: int = 0
    config: str = "default"


TPUS: Mapping[str, TpuKind] = {
    "v4": TpuKind("v4", 3, int(30.75 * _GIB), cores_per_chip=2, config="megacore"),
    "v5e": TpuKind("v5e", 2, int(15.75 * _GIB)),
    "v5p": TpuKind("v5p", 3, int(95.74 * _GIB), cores_per_chip=2),
    "v6e": TpuKind("v6e", 2, int(31.25 * _GIB)),
    "tpu7x": TpuKind("tpu7x", 3, int(94.75 * _GIB), devices_per_chip=2, cores_per_chip=2),
}


@dataclass(frozen=True, slots=True)
class GpuKind:
    """A GPU, by what its compiler asks for.

    capability: compute capability, major and minor. cores: streaming multiprocessors. fpus: float32 units of each. memory_bandwidth:
    bytes a second. shared_bytes: of a multiprocessor; block_bytes: the most of them that one block may have.
    """

    model: str
    capability: tuple[int, int]
    cores: int
    fpus: int
    clock_ghz: float
    memory_bytes: int
    memory_bandwidth: int
    l2_bytes: int
    shared_bytes: int
    block_bytes: int


GPUS: Mapping[str, GpuKind] = {
    "a100": GpuKind("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 1.41, 85_100_068_864, 2_039_040_000_000, 41_943_040, 167_936, 166_912),
    "h100": GpuKind("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 1.98, 84_942_979_072, 3_352_320_000_000, 52_428_800, 233_472, 232_448),
    "h200": GpuKind("NVIDIA H200", (9, 0), 132, 128, 1.98, 151_397_597_184, 4_800_000_000_000, 52_428_800, 233_472, 232_448),
    "b200": GpuKind("NVIDIA B200", (10, 0), 148, 128, 1.965, 191_514_411_008, 7_672_320_000_000, 132_644_864, 233_472, 232_448),
}


def gpu_memory_bandwidth(name: str) -> int:
    """Bytes a second of the main memory of a GPU, by its name as a target: `h100`. Raises KeyError for others."""
    return GPUS[name].memory_bandwidth

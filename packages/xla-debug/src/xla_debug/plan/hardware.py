"""How fast devices and the links between them are: the constants of every estimate.

Sources: the pages on TPU versions in Google Cloud's documentation (https://docs.cloud.google.com/tpu/docs/v5e and its neighbours); the
tables of chips and links in "How to Scale Your Model" (https://jax-ml.github.io/scaling-book/tpus); the data sheets of NVIDIA's A100, H100,
H200 and B200. Clocks of TPUs: peak operations divided by those of the cells of their matrix units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Speed:
    """Peaks of one device. flops: operations a second on matrices in bfloat16, and in float32; memory: bytes a second.

    link: bytes a second in one direction over one link to a neighbour; links: along how many axes it has two. clock: of the cycles in which
    a TPU's compiler estimates; 0 where it does not.
    """

    flops_bf16: float
    flops_f32: float
    memory: float
    link: float
    links: int
    clock: float = 0.0


SPEEDS: Mapping[str, Speed] = {
    "TPU v4": Speed(275e12, 275e12 / 6, 1.2e12, 45e9, 3, 1.05e9),
    "TPU v5 lite": Speed(197e12, 197e12 / 6, 0.82e12, 45e9, 2, 1.5e9),
    "TPU v5": Speed(459e12, 459e12 / 6, 2.77e12, 90e9, 3, 1.75e9),
    "TPU v6 lite": Speed(918e12, 918e12 / 6, 1.64e12, 90e9, 2, 1.75e9),
    "TPU7x": Speed(1153e12, 1153e12 / 6, 3.69e12, 100e9, 3, 1.9e9),
    "NVIDIA A100-SXM4-80GB": Speed(312e12, 19.5e12, 2.04e12, 300e9, 1),
    "NVIDIA H100 80GB HBM3": Speed(989e12, 67e12, 3.35e12, 450e9, 1),
    "NVIDIA H200": Speed(989e12, 67e12, 4.8e12, 450e9, 1),
    "NVIDIA B200": Speed(2250e12, 75e12, 7.7e12, 900e9, 1),
}

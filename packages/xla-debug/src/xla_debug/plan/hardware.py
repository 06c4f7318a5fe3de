"""How fast devices and the links between them are: the constants of every estimate, each with its source.

Peaks: the pages on TPU versions in Google Cloud's documentation (https://docs.cloud.google.com/tpu/docs/v6e and its neighbours), which also
have the sizes of matrix and vector units and say which slices are closed to a torus; links and the time of a hop: the tables in "How to
Scale Your Model" (https://jax-ml.github.io/scaling-book/tpus); the data sheets of NVIDIA's A100, H100, H200 and B200, of whose memory the
core has the speed, for which their compiler asks. Clocks of TPUs: peak operations divided by those of the cells of their matrix units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xla_debug import core

_memory_of = core.targets.gpu_memory_bandwidth


@dataclass(frozen=True, slots=True)
class Speed:
    """Peaks of one device. flops: operations a second on matrices in bfloat16, and in float32; memory: bytes a second. flops_tf32: in
    float32 at a lower precision than the highest, which GPUs multiply in 19 bits.

    link: bytes a second in one direction over one link to a neighbour; links: along how many axes it has two. clock: of the cycles in which
    a TPU's compiler estimates; 0 where it does not. unit: rows and columns of a matrix unit; cores: each with a vector unit. ring: an axis
    of so many chips, or a multiple, is closed to a ring.
    """

    flops_bf16: float
    flops_f32: float
    memory: float
    link: float
    links: int
    clock: float = 0.0
    unit: int = 1
    cores: int = 1
    ring: int = 1
    flops_tf32: float = 0.0


SPEEDS: Mapping[str, Speed] = {
    "TPU v4": Speed(275e12, 275e12 / 6, 1.2e12, 45e9, 3, 1.05e9, 128, 2, 4),
    "TPU v5 lite": Speed(197e12, 197e12 / 6, 0.82e12, 45e9, 2, 1.5e9, 128, 1, 16),
    "TPU v5": Speed(459e12, 459e12 / 6, 2.77e12, 90e9, 3, 1.75e9, 128, 2, 4),
    "TPU v6 lite": Speed(918e12, 918e12 / 6, 1.64e12, 90e9, 2, 1.75e9, 256, 1, 16),
    "TPU7x": Speed(1153e12, 1153e12 / 6, 3.69e12, 100e9, 3, 1.9e9, 256, 1, 4),
    "NVIDIA A100-SXM4-80GB": Speed(312e12, 19.5e12, _memory_of("a100"), 300e9, 1, flops_tf32=156e12),
    "NVIDIA H100 80GB HBM3": Speed(989e12, 67e12, _memory_of("h100"), 450e9, 1, flops_tf32=495e12),
    "NVIDIA H200": Speed(989e12, 67e12, _memory_of("h200"), 450e9, 1, flops_tf32=495e12),
    "NVIDIA B200": Speed(2250e12, 75e12, _memory_of("b200"), 900e9, 1, flops_tf32=1125e12),
}

HOP_SECONDS = 1e-6
"""From a TPU to its neighbour, however little is sent."""

VECTOR_LANES = 8 * 128
"""Numbers of 32 bits that a TPU core's vector unit takes at once: its sublanes times its lanes."""

VECTOR_RESULTS, SPECIAL_RESULTS = 4, 1
"""Results of vector operations, and of exponentials and the like, that a TPU core computes in a cycle, each for all lanes: the slots of an
instruction in the compiler's listings (libtpu 0.0.42.1, v6e)."""

KERNEL_SHARE, KERNEL_STEP_CYCLES = 0.9, 300
"""What a Pallas kernel reaches of the peak of the unit that has most to do, and the cycles that a step of its grid takes beside that.

By the final schedules of JAX's attention kernels in the compiler's listings (libtpu 0.0.42.1, v6e, head size 128, 8,192 tokens, thousands
of cycles for two heads; in brackets the estimate): splash attention in blocks of 2,048: forward 290 (283), gradients 460 (464); flash
attention in blocks of 512: forward 370 (406), gradient of queries 370 (386), of keys and values 560 (463).
"""

OVERRATED = ("broadcast", "reduce")
"""Instructions by themselves whose cycles are not taken: the compiler of TPUs estimates five to twelve times what moving the bytes takes,
and its listings have loops that take less than that (libtpu 0.0.42.1, v5e, v5p, v6e: `bf16[32,8192,4096]` filled, `bf16[8,4,8192,128]`
summed over an axis: 24 million and 1.1 million cycles on v6e, where the loops take 0.5 and 0.04, and the bytes 2.3 and 0.09)."""

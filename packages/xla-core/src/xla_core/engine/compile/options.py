"""The XLA compiler options of all programs, except those that `XLA_FLAGS` sets and those that the jaxlib does not have."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import jax
import numpy as np

from xla_core.base import config

# For the CPU: they switch off what miscomputes there (jaxlib 0.10.2 to 0.12.0, with AVX-512; a test has the cases), or is slow.
_CPU_OPTIONS: Mapping[str, str] = {
    # YNNPACK reads memory that is not its own where it fuses a broadcast, a product and a sum of many dimensions, and its convolution
    # runs on one thread. It keeps single matrix products.
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
    # Keeps the barriers in place that `ops/axes.py` writes blocks with; from jaxlib 0.12 on they are kept by default.
    "xla_disable_hlo_passes": "cse_barrier_expander",
}
# For programs with the user's loops: the pass that makes one kernel of a small loop aborts the process if it meets a barrier.
_CPU_OPTIONS_OF_LOOPS: Mapping[str, str] = {"xla_disable_hlo_passes": "cse_barrier_expander,small-while-loop-hoisting"}


# With them a program is ready much sooner, and runs slower. The compiler for GPUs has none that make a difference.
_QUICK_CPU_OPTIONS: Mapping[str, str] = {
    "xla_backend_optimization_level": "0",
    "xla_cpu_use_fusion_emitters": "False",
    "xla_cpu_parallel_codegen_split_count": "1",  # parts for many threads take longer than they save, and more memory mappings
}
_QUICK_TPU_OPTIONS: Mapping[str, float] = {"exec_time_optimization_effort": -1.0}


def quick_options(platform: str) -> dict[str, str | float]:
    """The options, besides `compiler_options`, of programs that are to be ready soon; none where there are not any."""
    if platform == "tpu":
        return dict(_QUICK_TPU_OPTIONS)
    return dict(_effective(_QUICK_CPU_OPTIONS)) if platform == "cpu" else {}


def compiler_options(platform: str, has_loops: bool = False) -> dict[str, str]:
    """The XLA compiler options for a platform (`cpu`, `cuda`, …): those that the jaxlib has and `XLA_FLAGS` does not set."""
    return _effective({**_CPU_OPTIONS, **(_CPU_OPTIONS_OF_LOOPS if has_loops else {})}) if platform == "cpu" else {}


def _effective(options: Mapping[str, str]) -> dict[str, str]:
    set_by_user = _flags(config.XLA_FLAGS.get() or "")
    left = {name: value for name, value in options.items() if name not in set_by_user}
    # All at once first: to ask takes as long as to compile a small program.
    return left if _known(**left) else {name: value for name, value in left.items() if _known(**{name: value})}


def _flags(text: str) -> set[str]:
    """The names that `XLA_FLAGS` sets. A text that does not begin with a dash is the path of a file of flags, as for XLA."""
    if text.strip() and not text.lstrip().startswith("-"):
        file = Path(text.strip())
        text = file.read_text() if file.is_file() else ""
    return {word.lstrip("-").partition("=")[0] for word in shlex.split(text)}


@cache
def _known(**options: str) -> bool:
    """Whether this jaxlib takes these options: compile the smallest program with them. Raises any other error."""
    on_cpu = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    program = jax.jit(lambda x: x, compiler_options=options)
    try:
        program.lower(jax.ShapeDtypeStruct((), np.dtype(np.int32), sharding=on_cpu)).compile()
    except jax.errors.JaxRuntimeError as error:
        if "INVALID_ARGUMENT" not in str(error):
            raise
        return False
    return True

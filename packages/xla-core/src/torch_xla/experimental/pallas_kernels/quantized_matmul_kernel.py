"""Products with int8 weights."""

from xla_core.features.kernels.jax_functions import TUNED_BLOCK_SIZES as TUNED_BLOCK_SIZES
from xla_core.features.kernels.jax_functions import get_tpu_version as get_tpu_version
from xla_core.features.kernels.jax_functions import get_tuned_block_sizes as get_tuned_block_sizes
from xla_core.features.kernels.jax_functions import quantized_matmul_int8 as quantized_matmul_int8
from xla_core.features.kernels.jax_functions import unfold_args as unfold_args

__all__ = [name for name in dir() if not name.startswith("__")]

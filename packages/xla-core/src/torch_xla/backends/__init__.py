"""The precision of matrix products and convolutions."""

from xla_core.ops.precision import get as get_mat_mul_precision
from xla_core.ops.precision import logger
from xla_core.ops.precision import set as set_mat_mul_precision

__all__ = ["get_mat_mul_precision", "logger", "set_mat_mul_precision"]

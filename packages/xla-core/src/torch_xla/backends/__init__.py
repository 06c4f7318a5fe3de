"""The precision of matrix products and convolutions."""

from xla_core.api.precision import get_mat_mul_precision, set_mat_mul_precision
from xla_core.ops.precision import logger

__all__ = ["get_mat_mul_precision", "logger", "set_mat_mul_precision"]

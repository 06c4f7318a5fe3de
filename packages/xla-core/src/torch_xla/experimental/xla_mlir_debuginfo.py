"""Notes in the locations of a module."""

from xla_core.features.export.markers import write_mlir_debuginfo, write_mlir_debuginfo_meta
from xla_core.features.export.markers import write_mlir_debuginfo as write_mlir_debuginfo_tensor

__all__ = ["write_mlir_debuginfo", "write_mlir_debuginfo_meta", "write_mlir_debuginfo_tensor"]

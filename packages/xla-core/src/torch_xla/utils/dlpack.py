"""Exchange of buffers without a copy."""

from xla_core.api.dlpack import from_dlpack, to_dlpack

__all__ = ["from_dlpack", "to_dlpack"]

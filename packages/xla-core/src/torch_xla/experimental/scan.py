"""A loop over the first dimension of tensors, compiled as one."""

from __future__ import annotations

from xla_core.control_flow.scan import scan

__all__ = ["scan"]

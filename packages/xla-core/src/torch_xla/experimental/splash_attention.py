"""Attention by the name of its TPU kernel."""

from __future__ import annotations

from xla_core.compat.custom_kernel import splash_attention

__all__ = ["splash_attention"]

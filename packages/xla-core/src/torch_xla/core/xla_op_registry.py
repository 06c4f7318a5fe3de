"""Operations that users build."""

from __future__ import annotations

from xla_core.legacy.builder.registry import Op, register

__all__ = ["Op", "register"]

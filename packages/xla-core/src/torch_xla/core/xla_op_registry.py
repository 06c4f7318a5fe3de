"""Operations that users build."""

from xla_core.legacy.builder.registry import Op, register

__all__ = ["Op", "register"]

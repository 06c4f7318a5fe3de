"""Views and expansions of which one size is that of another tensor."""

from __future__ import annotations

from xla_core.legacy.dynamic_reshape import dynamic_expand, dynamic_expand_meta, dynamic_view, dynamic_view_meta
from xla_core.legacy.dynamic_reshape import dynamic_expand as dynamic_expand_xla
from xla_core.legacy.dynamic_reshape import dynamic_view as dynamic_view_xla

__all__ = ["dynamic_expand", "dynamic_expand_meta", "dynamic_expand_xla", "dynamic_view", "dynamic_view_meta", "dynamic_view_xla"]

"""The hook that stock torch's backends `openxla` and `openxla_eval` call."""

from __future__ import annotations

from xla_core.dynamo.bridge import extract_compiled_graph, partition_fx_graph_for_cpu_fallback

__all__ = [
    "extract_compiled_graph",
    "partition_fx_graph_for_cpu_fallback",
]

"""The hook that stock torch's backends `openxla` and `openxla_eval` call, and the parts it is made of."""

from __future__ import annotations

from xla_core.dynamo.bridge import (
    UnsupportedNodesCollector,
    dynamo_debug,
    extract_compiled_graph,
    partition_fx_graph_for_cpu_fallback,
    ptxla_debug,
)
from xla_core.dynamo.extraction import (
    extract_compiled_graph_helper,
    extract_graph_helper,
    extract_internal,
)
from xla_core.dynamo.helpers import (
    Deduper,
    GraphInputMatcher,
    InputCollector,
    NoneRemover,
    SpecialReturnHandler,
    XLAConstructorMoverPass,
    get_fallback_ops,
    is_xla_tensor,
)

__all__ = [
    "Deduper",
    "GraphInputMatcher",
    "InputCollector",
    "NoneRemover",
    "SpecialReturnHandler",
    "UnsupportedNodesCollector",
    "XLAConstructorMoverPass",
    "dynamo_debug",
    "extract_compiled_graph",
    "extract_compiled_graph_helper",
    "extract_graph_helper",
    "extract_internal",
    "get_fallback_ops",
    "is_xla_tensor",
    "partition_fx_graph_for_cpu_fallback",
    "ptxla_debug",
]

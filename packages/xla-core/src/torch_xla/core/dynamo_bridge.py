"""The hook that stock torch's backends `openxla` and `openxla_eval` call, where they look for it."""

from __future__ import annotations

from xla_core.features.dynamo.bridge import (
    UnsupportedNodesCollector,
    dynamo_debug,
    extract_compiled_graph,
    partition_fx_graph_for_cpu_fallback,
)
from xla_core.features.dynamo.extraction import extract_compiled_graph_helper, extract_graph_helper, extract_internal
from xla_core.features.dynamo.helpers import (
    Deduper,
    GraphInputMatcher,
    InputCollector,
    NoneRemover,
    SpecialReturnHandler,
    XLAConstructorMoverPass,
    get_fallback_ops,
    is_xla_tensor,
)
from xla_core.legacy.utils import check_env_flag

ptxla_debug = check_env_flag("PT_XLA_DEBUG")

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

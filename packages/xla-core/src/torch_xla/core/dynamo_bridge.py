"""The hook that stock torch's backends `openxla` and `openxla_eval` call, where they look for it."""

from xla_core.features.dynamo.bridge import UnsupportedNodesCollector as UnsupportedNodesCollector
from xla_core.features.dynamo.bridge import dynamo_debug as dynamo_debug
from xla_core.features.dynamo.bridge import extract_compiled_graph as extract_compiled_graph
from xla_core.features.dynamo.bridge import partition_fx_graph_for_cpu_fallback as partition_fx_graph_for_cpu_fallback
from xla_core.features.dynamo.extraction import extract_compiled_graph_helper as extract_compiled_graph_helper
from xla_core.features.dynamo.extraction import extract_graph_helper as extract_graph_helper
from xla_core.features.dynamo.extraction import extract_internal as extract_internal
from xla_core.features.dynamo.helpers import Deduper as Deduper
from xla_core.features.dynamo.helpers import GraphInputMatcher as GraphInputMatcher
from xla_core.features.dynamo.helpers import InputCollector as InputCollector
from xla_core.features.dynamo.helpers import NoneRemover as NoneRemover
from xla_core.features.dynamo.helpers import SpecialReturnHandler as SpecialReturnHandler
from xla_core.features.dynamo.helpers import XLAConstructorMoverPass as XLAConstructorMoverPass
from xla_core.features.dynamo.helpers import get_fallback_ops as get_fallback_ops
from xla_core.features.dynamo.helpers import is_xla_tensor as is_xla_tensor
from xla_core.legacy.utils import check_env_flag

ptxla_debug = check_env_flag("PT_XLA_DEBUG")

__all__ = [name for name in dir() if not name.startswith("__") and name != "check_env_flag"]

"""The one door: all of xla_core that a sibling package or an integrator may import (`xla_core.testing` aside).

No logic lives here. The signatures below are locked in `abi.lock.json`; changing one needs a new `ABI_VERSION`.
"""

from __future__ import annotations

from xla_core.config import Setting, installed_settings
from xla_core.errors import ExecutionError, XlaError
from xla_core.frontend.dispatch import capture_lines, register_op
from xla_core.frontend.exchange import (
    annotate,
    annotation,
    buffer_of,
    computed,
    graph_of,
    is_pending,
    shown_key,
    sync,
    tensor_from_buffer,
    tensor_from_host,
)
from xla_core.frontend.living import LiveBuffer, live_buffers
from xla_core.frontend.plain import tensor_behind
from xla_core.frontend.setup import activate
from xla_core.frontend.spread import (
    DevicePart,
    OwnedPart,
    device_parts,
    enter_manual,
    is_manual,
    lay_out,
    layout,
    leave_manual,
    order_devices,
    owned_parts,
    tensor_from_parts,
    upload_divided,
)
from xla_core.frontend.tensor import XLATensor
from xla_core.ir.graph import Graph, Input, Operation, aval_at
from xla_core.ir.layout import Layout
from xla_core.ir.manual import REPLICA_AXIS
from xla_core.ir.text import graph_text
from xla_core.metrics import (
    Cause,
    CompileEvent,
    Direction,
    ExecuteEvent,
    FallbackEvent,
    MetricSnapshot,
    Snapshot,
    SyncEvent,
    SyncKind,
    TransferEvent,
    Unit,
    clear_counters,
    clear_metrics,
    counter,
    counter_add,
    metric,
    metric_add,
    metric_names,
    snapshot,
    subscribe,
)
from xla_core.ops.table import Context, OpSpec, scalar
from xla_core.runtime.abi_version import ABI_VERSION, require
from xla_core.runtime.client import Client, before_start, client
from xla_core.runtime.executor import BuildScope, ExecutableWrapper, GraphPass, register_build_scope, register_pass, register_wrapper
from xla_core.runtime.failures import explain_failures
from xla_core.runtime.origin import pass_over, user_frames, user_line
from xla_core.runtime.topology import Topology, set_topology, topology

__all__ = [
    "ABI_VERSION",
    "Cause",
    "Client",
    "BuildScope",
    "CompileEvent",
    "Context",
    "DevicePart",
    "Direction",
    "ExecutableWrapper",
    "ExecuteEvent",
    "ExecutionError",
    "FallbackEvent",
    "Graph",
    "GraphPass",
    "Input",
    "Layout",
    "LiveBuffer",
    "MetricSnapshot",
    "OpSpec",
    "Operation",
    "OwnedPart",
    "REPLICA_AXIS",
    "Setting",
    "Snapshot",
    "SyncEvent",
    "SyncKind",
    "Topology",
    "TransferEvent",
    "Unit",
    "XLATensor",
    "XlaError",
    "annotate",
    "annotation",
    "aval_at",
    "before_start",
    "buffer_of",
    "capture_lines",
    "clear_counters",
    "clear_metrics",
    "client",
    "computed",
    "counter",
    "counter_add",
    "device_parts",
    "enter_manual",
    "explain_failures",
    "graph_of",
    "graph_text",
    "installed_settings",
    "is_manual",
    "is_pending",
    "lay_out",
    "layout",
    "leave_manual",
    "live_buffers",
    "metric",
    "metric_add",
    "metric_names",
    "order_devices",
    "owned_parts",
    "pass_over",
    "register_build_scope",
    "register_op",
    "register_pass",
    "register_wrapper",
    "require",
    "scalar",
    "set_topology",
    "shown_key",
    "snapshot",
    "subscribe",
    "sync",
    "tensor_behind",
    "tensor_from_buffer",
    "tensor_from_host",
    "tensor_from_parts",
    "topology",
    "upload_divided",
    "user_frames",
    "user_line",
]

activate()

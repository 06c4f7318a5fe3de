"""Profiles of a run, and names for its parts (alias `xp`)."""

from xla_debug.profiling.module_scopes import name_modules as name_modules
from xla_debug.profiling.operator_times import OperatorTime as OperatorTime
from xla_debug.profiling.operator_times import operator_times as operator_times
from xla_debug.profiling.profiler import StepTrace as StepTrace
from xla_debug.profiling.profiler import Trace as Trace
from xla_debug.profiling.profiler import get_tracer_marked_step as get_tracer_marked_step
from xla_debug.profiling.profiler import set_tracer_marked_step as set_tracer_marked_step
from xla_debug.profiling.profiler import start_server as start_server
from xla_debug.profiling.profiler import start_trace as start_trace
from xla_debug.profiling.profiler import stop_trace as stop_trace
from xla_debug.profiling.profiler import trace_me as trace_me
from xla_debug.profiling.profiler_client import trace as trace
from xla_debug.profiling.profiler_client import trace_detached as trace_detached
from xla_debug.profiling.torch_timeline import Timeline as Timeline

__all__ = [name for name in dir() if not name.startswith("__")]

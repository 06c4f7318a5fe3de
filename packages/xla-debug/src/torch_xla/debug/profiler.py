"""Profiles of a run, and names for its parts (alias `xp`)."""

from __future__ import annotations

from xla_debug.profiling.module_scopes import name_modules
from xla_debug.profiling.operator_times import OperatorTime, operator_times
from xla_debug.profiling.profiler import (
    StepTrace,
    Trace,
    get_tracer_marked_step,
    set_tracer_marked_step,
    start_server,
    start_trace,
    stop_trace,
    trace_me,
)
from xla_debug.profiling.profiler_client import trace, trace_detached
from xla_debug.profiling.torch_timeline import Timeline

__all__ = [
    "OperatorTime",
    "StepTrace",
    "Timeline",
    "Trace",
    "get_tracer_marked_step",
    "name_modules",
    "operator_times",
    "set_tracer_marked_step",
    "start_server",
    "start_trace",
    "stop_trace",
    "trace",
    "trace_detached",
    "trace_me",
]

"""`torch_xla._XLAC.profiler`: the functions of upstream's extension module that client code calls."""

from __future__ import annotations

from collections.abc import Mapping

from jax.profiler import TraceAnnotation as TraceMe

from xla_debug.profiling import profiler, profiler_client

__all__ = ["TraceMe", "start_server", "trace"]


def start_server(port: int) -> object:
    """As `torch_xla.debug.profiler.start_server`, in every replica."""
    return profiler.start_server(port, only_on_master=False)


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int,
    num_tracing_attempts: int,
    timeout_s: int,
    interval_s: int,
    options: Mapping[str, int],
) -> None:
    """As `torch_xla.debug.profiler.trace`. options: the levels and `delay_ms`."""
    profiler_client.trace(service_addr, logdir, duration_ms, num_tracing_attempts, timeout_s=timeout_s, interval_s=interval_s, **options)

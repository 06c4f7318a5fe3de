"""Profile a run with JAX's profiler (`torch_xla.debug.profiler`); XProf, TensorBoard and Perfetto open the files."""

from __future__ import annotations

import functools
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

import jax

from xla_debug.core import budget, events, job, metrics, process, tensors
from xla_debug.profiling.full_trace import complete_trace

if TYPE_CHECKING:
    from xla_debug.profiling.profiler_service import ProfilerServer

P = ParamSpec("P")
R = TypeVar("R")


@budget()
def start_server(port: int, only_on_master: bool = True, host: str = "127.0.0.1") -> ProfilerServer | None:
    """Serve profiles of this process on `port`, until it ends, to `trace` and to the viewers above on this machine.

    only_on_master: only in each host's first replica; returns None in the others. host: the address or name to listen at. There is no
    authentication: at an address that other machines reach ("0.0.0.0" is all), whoever reaches it can watch the program. Raises
    RuntimeError for an invalid or taken port or host, or if the server runs already.
    """
    global _server
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise RuntimeError(f"port {port!r} is none: give a whole number from 1 to 65535")
    if not isinstance(host, str) or not host:
        raise RuntimeError(f'host {host!r} is none: give an address of this machine, or "0.0.0.0" for all of them')
    if only_on_master and job.local_ordinal() != 0:
        return None
    from xla_debug.profiling.profiler_service import ProfilerServer  # here, since it imports gRPC

    with _server_lock:
        if _server is not None and _server.runs:
            raise RuntimeError(f"the profiler server of this process runs already, it cannot start on port {port} too")
        try:
            _server = ProfilerServer(host, port)
        except OSError as error:
            raise RuntimeError(f"port {port} of {host} cannot be served ({error.strerror}): choose another") from error
    return _server


_server: ProfilerServer | None = None
_server_lock = threading.Lock()


@budget()
def start_trace(log_dir: str | os.PathLike[str], python_frames: bool = True) -> None:
    """Start profiling this process and its devices. Raises RuntimeError if a profile is being taken already.

    python_frames: record calls of Python functions, too. Without them the profile is smaller, and Python is not slowed down.
    """
    global _log_dir
    process.client()  # before JAX starts devices by itself
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = int(python_frames)
    jax.profiler.start_trace(log_dir, profiler_options=options)
    _log_dir = Path(log_dir) if python_frames else None


@budget(compiles=None, reads=None)
def stop_trace() -> None:
    """Write the profile to `<log_dir>/plugins/profile/<time>`. Raises RuntimeError if none is being taken.

    Both files have all events of the compiler and the devices; if there are too many Python frames, the JSON has the longest of them.
    """
    global _log_dir
    log_dir, _log_dir = _log_dir, None
    jax.profiler.stop_trace()
    if log_dir is not None:
        written = log_dir.glob(f"plugins/profile/*/{socket.gethostname()}.xplane.pb")
        complete_trace(max(written, key=lambda file: file.stat().st_mtime_ns))


_log_dir: Path | None = None  # of the trace that runs, if it has Python frames


class Trace(jax.profiler.TraceAnnotation):
    """Names the work of a block, or of each call of a decorated function, in a profile. kwargs: shown beside the name."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self._name = name
        self._again = functools.partial(type(self), name, **kwargs)

    def __enter__(self) -> Self:
        super().__enter__()
        self._scope = metrics.scope(self._name)
        self._scope.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._scope.__exit__(None, None, None)
        super().__exit__(*exc)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def traced(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._again():
                return function(*args, **kwargs)

        return traced


class StepTrace(Trace):
    """Marks a step of the training loop, and ends it with a step sync. kwargs: `step_num`, by which viewers count."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name, **{"_r": 1, **kwargs})  # the mark of a step
        self._outside = False

    def __enter__(self) -> Self:
        super().__enter__()
        self._outside = get_tracer_marked_step()
        set_tracer_marked_step(True)
        return self

    def __exit__(self, *exc: object) -> None:
        set_tracer_marked_step(self._outside)
        try:
            tensors.sync(cause=events.Cause.STEP_TRACE)
        finally:
            super().__exit__(*exc)


@budget()
def trace_me(scope: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that profiles name each call of it `scope`."""
    return Trace(scope)


class _StepMark(threading.local):
    """Whether this thread is in a StepTrace."""

    step = False


_step_mark = _StepMark()


@budget()
def set_tracer_marked_step(value: bool) -> None:
    """Set whether a StepTrace makes this thread's step syncs, so that device loaders make none."""
    _step_mark.step = value


@budget()
def get_tracer_marked_step() -> bool:
    """Whether a StepTrace makes this thread's step syncs."""
    return _step_mark.step

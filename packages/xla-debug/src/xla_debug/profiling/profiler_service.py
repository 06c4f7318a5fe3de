"""Serve profiles of this process: XLA's profiler service over gRPC, on one address of this machine.

JAX's own server takes no address: it listens on all of them, and writes a profile to whatever folder a client names. This server
sends the profile to the client and writes no file. Clients are `profiler_client`, TensorBoard and XProf.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

import grpc

from xla_debug import _compat
from xla_debug.profiling import wire_format
from xla_debug.profiling.profiler_client import DEVICE_LEVEL, DURATION, EMIT_PROFILE, EMPTY, HOST_LEVEL, OPTIONS, PROFILE, VERSION
from xla_debug.recording import process_end

_SERVICE, _METHOD = "tensorflow.ProfilerService", "Profile"
# Further fields of ProfileOptions, of ProfileResponse, and of the tool data in it; of XSpace, XPlane and XLine.
_PYTHON_LEVEL, _TOOL_DATA, _TOOL_NAME, _TOOL_BYTES = 4, 6, 1, 2
_PLANES, _LINES, _EVENTS = 1, 3, 4
_LONGEST_MS = 3_600_000
_HIGHEST_LEVEL = 3
_CALLS = 4
"""Calls at once, at most: one of them gets the profiler, and the others get an error."""

P = ParamSpec("P")
R = TypeVar("R")


class ProfilerServer:
    """Serves profiles until `stop`, or the end of the process. Raises OSError if it cannot listen at the address."""

    def __init__(self, host: str, port: int) -> None:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # Raises the reason if the address cannot be used, which gRPC's own error does not have.
        socket.create_server(address, family=family).close()
        self.address = f"[{address[0]}]:{port}" if family is socket.AF_INET6 else f"{address[0]}:{port}"
        self._server = grpc.server(
            _DaemonThreads(),
            options=[("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)],
            maximum_concurrent_rpcs=_CALLS,
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: grpc.unary_unary_rpc_method_handler(_profile)}),)
        )
        try:
            self._server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise OSError(None, f"gRPC cannot listen at {self.address}") from error
        self._server.start()
        self.runs = True
        self._call_off: Callable[[], None] = process_end.register(self.stop)

    def stop(self) -> None:
        """Stop serving; a profile that is being taken is not sent."""
        self.runs = False
        self._call_off()
        self._server.stop(None).wait()


def _profile(request: bytes, context: Any) -> bytes:
    """Answer one request: profile this process for the requested time."""
    try:
        message = wire_format.Message(request)
        options = wire_format.Message(message.part(OPTIONS))
        levels = [options.number(field) for field in (HOST_LEVEL, DEVICE_LEVEL, _PYTHON_LEVEL)]
        duration_ms = options.number(DURATION)
        if not 0 <= duration_ms <= _LONGEST_MS or not all(0 <= level <= _HIGHEST_LEVEL for level in levels):
            raise ValueError(f"at most {_LONGEST_MS} ms and levels of {_HIGHEST_LEVEL} can be asked for")
    except ValueError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a request for a profile: {error}")
    try:
        session = _compat.profiler_session(*levels) if options.number(VERSION) else _compat.profiler_session()
        gone = threading.Event()
        if context.add_callback(gone.set):  # False if the client has gone already
            gone.wait(duration_ms / 1000)
        profile = session.stop()
    except RuntimeError as error:  # another profile is being taken
        context.abort(grpc.StatusCode.INTERNAL, str(error).removeprefix("ALREADY_EXISTS: "))
    empty = wire_format.number_field(EMPTY, 1) if _is_empty(profile) else b""
    if message.number(EMIT_PROFILE):
        return empty + wire_format.text_field(PROFILE, profile)
    # A client that does not ask for the profile expects XLA's server to write it to a folder. Clients write a tool's data themselves.
    tool = wire_format.text_field(_TOOL_NAME, b"xplane.pb") + wire_format.text_field(_TOOL_BYTES, profile)
    return empty + wire_format.text_field(_TOOL_DATA, tool)


class _DaemonThreads(Executor):
    """Runs each call in a daemon thread: the end of the program waits for the threads of a ThreadPoolExecutor, but not for these."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        future: Future[R] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="xla-profiler-server", daemon=True).start()
        return future


def _is_empty(profile: bytes) -> bool:
    """Whether an encoded profile has no events."""
    lines = (line for plane in _parts(profile, _PLANES) for line in _parts(plane, _LINES))
    return not any(True for line in lines for _ in _parts(line, _EVENTS))


def _parts(message: bytes, field: int) -> Iterator[bytes]:
    return (value for number, value in wire_format.fields(message) if number == field and isinstance(value, bytes))

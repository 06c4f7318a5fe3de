"""Request profiles from the profiler servers of running processes: ours, JAX's, and all others that run XLA's server.

XLA's service uses gRPC, for which jaxlib has a server but no client. This module encodes and decodes the few fields of its messages that
are needed; the profile itself goes to its file unread.
"""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xla_debug.profiling import wire_format

_METHOD = "/tensorflow.ProfilerService/Profile"
# Fields of ProfileRequest, of the ProfileOptions in it, and of ProfileResponse.
OPTIONS, EMIT_PROFILE = 4, 9
HOST_LEVEL, DEVICE_LEVEL, VERSION, DURATION = 2, 3, 5, 9
EMPTY, PROFILE = 7, 8
_OPTIONS_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of `trace`."""

    duration_ms: int
    attempts: int
    host_tracer_level: int
    device_tracer_level: int
    delay_s: float
    timeout_s: float
    interval_s: float

    @property
    def message(self) -> bytes:
        """The encoded request."""
        fields = (
            (HOST_LEVEL, self.host_tracer_level),
            (DEVICE_LEVEL, self.device_tracer_level),
            (VERSION, _OPTIONS_VERSION),
            (DURATION, self.duration_ms),
        )
        options = b"".join(wire_format.number_field(number, value) for number, value in fields)
        return wire_format.text_field(OPTIONS, options) + wire_format.number_field(EMIT_PROFILE, 1)


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    host_tracer_level: int = 2,
    device_tracer_level: int = 1,
    delay_ms: int = 0,
    timeout_s: int = 120,
    interval_s: int = 5,
) -> None:
    """Profile the processes that serve at `service_addr` (`host:port`, several with commas), to `<logdir>/plugins/profile/<time>`.

    A profile takes `duration_ms`, after `delay_ms`, and is repeated while it is empty, up to `num_tracing_attempts` in all. A server that
    cannot be reached is asked again every `interval_s` until `timeout_s` have passed. Raises RuntimeError if no profile comes, and
    ValueError for an invalid address or number.
    """
    addresses = [address.strip().removeprefix("grpc://") for address in service_addr.split(",")]
    for address in addresses:
        if not re.fullmatch(r".+:\d+", address):
            raise ValueError(f"service_addr is {service_addr!r}: give host:port, as in localhost:9012; several with commas")
    if duration_ms < 1 or num_tracing_attempts < 1 or min(delay_ms, timeout_s, interval_s, host_tracer_level, device_tracer_level) < 0:
        raise ValueError("duration_ms and num_tracing_attempts must be at least 1, the other numbers at least 0")
    request = _Request(duration_ms, num_tracing_attempts, host_tracer_level, device_tracer_level, delay_ms / 1000, timeout_s, interval_s)
    with ThreadPoolExecutor(len(addresses)) as pool:
        profiles = list(pool.map(_profile, addresses, [request] * len(addresses)))
    folder = Path(logdir) / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
    folder.mkdir(parents=True, exist_ok=True)
    for address, profile in zip(addresses, profiles, strict=True):
        (folder / f"{address.replace(':', '_')}.xplane.pb").write_bytes(profile)


def trace_detached(*args: Any, **kwargs: Any) -> None:
    """As `trace`, in a thread of its own, whose errors go to stderr. So a process may profile itself."""
    threading.Thread(target=trace, args=args, kwargs=kwargs, name="xla-profile", daemon=True).start()


def _profile(address: str, request: _Request) -> bytes:
    """Request the profile of one process, as XLA encodes it. Raises RuntimeError."""
    import grpc  # here, since only requests for profiles need it

    time.sleep(request.delay_s)
    end = time.monotonic() + request.timeout_s
    with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        call = channel.unary_unary(_METHOD)
        for _ in range(request.attempts):
            try:
                fields = dict(wire_format.fields(_answer(call, address, request, end)))
            except ValueError as error:
                raise RuntimeError(f"{address} sent an answer that this client cannot read: {error}") from error
            if not fields.get(EMPTY):
                break
        else:
            raise RuntimeError(
                f"{address} did nothing in {request.attempts} × {request.duration_ms} ms: make duration_ms longer than a step"
            )
    profile = fields.get(PROFILE)
    if not isinstance(profile, bytes):
        raise RuntimeError(f"{address} answered without a profile: its XLA is older than this client; upgrade its jaxlib")
    return profile


def _answer(call: Any, address: str, request: _Request, end: float) -> bytes:
    """Send one request; a server that cannot be reached is asked again until `end`."""
    import grpc

    while True:
        try:
            answer: bytes = call(request.message, timeout=max(end - time.monotonic(), 0.0) + request.duration_ms / 1000)
            return answer
        except grpc.RpcError as error:
            again = error.code() is grpc.StatusCode.UNAVAILABLE and time.monotonic() + request.interval_s < end
            if not again:
                raise RuntimeError(
                    f"no profile came from {address} ({error.code().name}: {error.details()}): is start_server running there?"
                ) from error
        time.sleep(request.interval_s)

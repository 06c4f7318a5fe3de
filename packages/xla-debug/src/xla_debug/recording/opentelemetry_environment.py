"""Read from the environment whether to make OpenTelemetry spans, and where they go.

The variables are those of OpenTelemetry's specification. Its SDK reads the others: endpoints, headers, samplers, the resource.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from xla_debug import optional_libraries, settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_GROUP = "opentelemetry_traces_exporter"
_OTLP = "otlp"
_BY_PROTOCOL = {None: (_OTLP, "otlp_proto_http", "otlp_proto_grpc"), "grpc": ("otlp_proto_grpc",), "http/protobuf": ("otlp_proto_http",)}


def spans_wanted(recorded: bool) -> bool:
    """Whether this process makes spans: if XLA_DEBUG_OPENTELEMETRY says so, or by default if it is recorded and an exporter is configured.

    Raises ImportError if the variable asks for spans and the SDK is missing.
    """
    requested = settings.OPENTELEMETRY.get()
    if requested:
        optional_libraries.require(optional_libraries.OPENTELEMETRY, f"{settings.OPENTELEMETRY.name}=1")
    if requested is not None:
        return requested
    return recorded and _exporter_is_configured() and optional_libraries.is_installed(optional_libraries.OPENTELEMETRY)


def provider_of_environment() -> TracerProvider | None:
    """Make a provider with the exporters that OTEL_TRACES_EXPORTER names, OTLP if it is not set; None if it is `none`.

    Raises ImportError for an exporter that is not installed.
    """
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter_names = [name for part in (settings.OTEL_TRACES_EXPORTER.get() or _OTLP).split(",") if (name := part.strip())]
    if exporter_names == ["none"]:
        return None
    exporters = [_exporter(name).load()() for name in exporter_names]
    provider = TracerProvider(shutdown_on_exit=False)  # the owner shuts it down, after the last span
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporter_is_configured() -> bool:
    exporter_names = settings.OTEL_TRACES_EXPORTER.get()
    if exporter_names is not None:
        return exporter_names.strip() != "none"
    return settings.OTEL_EXPORTER_OTLP_ENDPOINT.is_set() or settings.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT.is_set()


def _exporter(name: str) -> EntryPoint:
    names: tuple[str, ...] = (name,)
    if name == _OTLP:
        protocol = settings.OTEL_EXPORTER_OTLP_TRACES_PROTOCOL.get() or settings.OTEL_EXPORTER_OTLP_PROTOCOL.get()
        if protocol not in _BY_PROTOCOL:
            raise ImportError(f"no exporter speaks the protocol {protocol!r} of OTEL_EXPORTER_OTLP_PROTOCOL: use grpc or http/protobuf")
        names = _BY_PROTOCOL[protocol]
    installed = {entry.name: entry for entry in entry_points(group=_GROUP)}
    for candidate in names:
        if candidate in installed:
            return installed[candidate]
    advice = f"pip install opentelemetry-exporter-otlp, or set OTEL_TRACES_EXPORTER to one of {', '.join(sorted(installed))}"
    raise ImportError(f"the exporter {name!r} is not installed: {advice}")

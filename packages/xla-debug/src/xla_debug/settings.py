"""The environment variables that this package reads, besides the core's."""

from __future__ import annotations

import enum

from xla_core.abi.settings import Setting, flag, integer, text
from xla_debug import recording_folder


class GraphFormat(enum.Enum):
    """The formats in which a program is written to a file."""

    TEXT = "text"
    DOT = "dot"
    HLO = "hlo"


def _percentiles(text: str) -> tuple[float, ...]:
    fractions = tuple(float(part) for part in text.split(":"))
    if not all(0.0 <= fraction <= 1.0 for fraction in fractions):
        raise ValueError(text)
    return fractions


RECORDING_DIR = text(recording_folder.RECORDING_DIR, "Folder in which this process keeps its recording; `xla-debug run` sets it.")

# Other tools that watch the program, from first use of a device on.
OPENTELEMETRY: Setting[bool | None] = flag(
    recording_folder.OPENTELEMETRY,
    None,
    "Make spans of OpenTelemetry: 1 yes, 0 no, unset in a recorded process if the environment names an exporter.",
)
TENSORBOARD_DIR = text(recording_folder.TENSORBOARD_DIR, "Folder to which this process writes scalars of each step for TensorBoard.")
OTEL_TRACES_EXPORTER = text("OTEL_TRACES_EXPORTER", "OpenTelemetry's: exporters of spans with commas between them; `none` is none.")
OTEL_EXPORTER_OTLP_ENDPOINT = text("OTEL_EXPORTER_OTLP_ENDPOINT", "OpenTelemetry's: where the exporter OTLP sends.")
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT = text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OpenTelemetry's: where the exporter OTLP sends spans.")
OTEL_EXPORTER_OTLP_PROTOCOL = text("OTEL_EXPORTER_OTLP_PROTOCOL", "OpenTelemetry's: grpc or http/protobuf.")
OTEL_EXPORTER_OTLP_TRACES_PROTOCOL = text("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OpenTelemetry's: grpc or http/protobuf, for spans.")

# Metrics and files of tensors.
METRICS_FILE = text(
    "XLA_METRICS_FILE",
    "Each step sync appends the metrics report to this file, or to the stream STDERR or STDOUT; read at first use of a device.",
)
METRICS_PERCENTILES: Setting[tuple[float, ...]] = Setting(
    "XLA_METRICS_PERCENTILES",
    (0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99),
    "Percentiles in metrics reports, as fractions with colons between them.",
    _percentiles,
    "numbers from 0 to 1 with colons between them",
)
MODELCMP_SAVEDIR = text("MODELCMP_SAVEDIR", "Folder of `model_comparator.save`, unless `configure` names one.")

# Analysis of compilations and executions, read at first use of a device.
DEBUG = flag("PT_XLA_DEBUG", False, "Explain compilations and executions: level 100 of PT_XLA_DEBUG_LEVEL.")
DEBUG_LEVEL: Setting[int | None] = integer(
    "PT_XLA_DEBUG_LEVEL", None, "What to explain: 1 compilations, from 2 on executions, from 3 on what slows steps down; 0 nothing."
)
DEBUG_FILE = text("PT_XLA_DEBUG_FILE", "File to which explanations are appended; stderr when unset.")
DEBUG_MAX_FRAME = integer("PT_XLA_DEBUG_MAX_FRAME", 8, "Python frames in an explanation, at most.")

# Programs.
SAVE_GRAPH_FMT = Setting(
    "SAVE_GRAPH_FMT",
    GraphFormat.TEXT,
    "How `torch_xla.debug.graph_saver` writes a program: as text, Graphviz's dot, or HLO.",
    GraphFormat,
    "text, dot or hlo",
)

SAVE_TENSORS_FILE = text("XLA_SAVE_TENSORS_FILE", "File to which each program is appended before it runs; read at first use of a device.")
SAVE_TENSORS_FMT = Setting(
    "XLA_SAVE_TENSORS_FMT", GraphFormat.TEXT, "How XLA_SAVE_TENSORS_FILE has programs.", GraphFormat, "text, dot or hlo"
)

SETTINGS: tuple[Setting[object], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Setting))

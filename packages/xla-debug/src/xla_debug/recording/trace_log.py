"""Write every compiled program to torch's trace log (`TORCH_TRACE=FOLDER`), where `tlparse` shows it beside torch's own artifacts."""

from __future__ import annotations

import dataclasses
import functools
import itertools

from xla_debug import _compat
from xla_debug.core import events, texts
from xla_debug.recording.program_differences import KnownPrograms


@functools.cache
def install() -> None:
    """Write each compilation from now on."""
    events.subscribe(_Writer().write, events.CompileEvent)


class _Writer:
    """Writes two artifacts for each compilation: `xla_program_N`, its text, and `xla_compile_N`, the reason and the measurements."""

    def __init__(self) -> None:
        self._known = KnownPrograms()
        self._numbers = itertools.count()

    def write(self, event: events.CompileEvent) -> None:
        index = next(self._numbers)
        difference = dataclasses.asdict(self._known.explain(event))
        _compat.write_to_trace_log(f"xla_program_{index}", texts.graph_text(event.graph))
        _compat.write_to_trace_log(
            f"xla_compile_{index}",
            {
                "graph_hash": event.graph_hash,
                "line": event.line,
                "cause": event.cause and event.cause.value,
                "name": event.name,
                "start_s": event.start_s,
                "duration_ms": event.duration_ns * 1e-6,
                "operations": event.num_nodes,
                "inputs": event.num_inputs,
                "results": event.num_outputs,
                "difference": difference | {"change": difference["change"].value},
            },
        )

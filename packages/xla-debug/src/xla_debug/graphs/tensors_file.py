"""Append every program that runs to the file of XLA_SAVE_TENSORS_FILE, with the user's frames that asked for it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import torch_xla
from xla_debug import replica_output
from xla_debug.core import events, texts
from xla_debug.core import graph as graph_abi
from xla_debug.graphs import drawing, graph_text
from xla_debug.settings import SAVE_TENSORS_FILE, SAVE_TENSORS_FMT, GraphFormat


@functools.cache
def install() -> None:
    """Write each program from now on, if XLA_SAVE_TENSORS_FILE is set."""
    target = SAVE_TENSORS_FILE.get()
    if target is not None:
        graph_abi.register_wrapper(functools.partial(_saving, target))


def _saving(target: str, graph: graph_abi.Graph, executable: Callable[..., Any]) -> Callable[..., Any]:
    text: str | None = None
    # The hash of the text without lines is the same in every process for the same program.
    digest = hashlib.sha256(texts.graph_text(graph, lines=False).encode()).hexdigest()[:32]

    def run(*arguments: Any) -> Any:
        nonlocal text
        if text is None:  # the same each time, and HLO takes a trace
            text = _text(graph, executable, arguments)
        frames = "".join(f"  {frame}\n" for frame in events.user_frames())
        head = f"[ScheduleSyncTensorsGraph]\nTensorsGraphInfo:\n{frames}\nHashes: ({digest})\n\n"
        block = f"{head}## BEGIN_GRAPH\n{text.rstrip()}\n## END_GRAPH\n\n"
        replica_output.append(replica_output.target_of_replica(target), block)
        return executable(*arguments)

    return run


def _text(graph: graph_abi.Graph, executable: Any, arguments: tuple[Any, ...]) -> str:
    form = SAVE_TENSORS_FMT.get()
    if form is GraphFormat.HLO:
        # A program compiled here can be lowered again; one from the cache on disk only has the HLO that XLA optimized.
        return str(executable.lower(*arguments).as_text(dialect="hlo") if hasattr(executable, "lower") else executable.as_text())
    if form is GraphFormat.DOT:
        return drawing.dot(graph_text.parse(texts.graph_text(graph)))
    return texts.node_text(graph, torch_xla.real_devices()[0])

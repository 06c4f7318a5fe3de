"""Explain each compilation and execution as it happens, where PT_XLA_DEBUG asks for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from xla_debug import replica_output
from xla_debug.analysis.frame_parser import CLOSING, FRAMES, HASH, OPENING, Explained
from xla_debug.analysis.slowdown_warnings import SlowdownWarnings
from xla_debug.core import events
from xla_debug.core import graph as graph_abi
from xla_debug.settings import DEBUG, DEBUG_FILE, DEBUG_LEVEL, DEBUG_MAX_FRAME

_COMPILATIONS, _EXECUTIONS, _ALL = 1, 2, 100
_GB = 1024**3

_CAUSES = {
    events.Cause.USER_SYNC: "user torch_xla.sync",
    events.Cause.LOADER: "torch_xla.sync in parallel loader at step end",
    events.Cause.STEP_TRACE: "torch_xla.sync when exiting a profiler StepTrace region",
    events.Cause.CAPTURED: "captured torch_xla.compile step",
    events.Cause.DYNAMO_INPUTS: "torch_xla.sync when dynamo processing input graphs",
    events.Cause.COMPILE_REGION: "torch_xla.compile",
    events.Cause.CLEAR_PENDING: "torch_xla.compile clear pending",
    events.Cause.DYNAMO_COMPILE: "dynamo is compiling a FX graph to HLO",
    events.Cause.DYNAMO_EXECUTE: "dynamo is executing a compiled program",
    events.Cause.VALUE_READ: "value read before sync",
    events.Cause.PENDING_LIMIT: "too much pending without a torch_xla.sync",
}


def level() -> int:
    """Read from the environment what to explain: 0 nothing, 1 compilations, from 2 on executions, from 3 on what slows steps down."""
    requested = DEBUG_LEVEL.get()
    return requested if requested is not None else _ALL if DEBUG.get() else 0


@functools.cache
def install() -> None:
    """Start explaining what the environment asks for."""
    requested = level()
    target = DEBUG_FILE.get() or replica_output.STDERR
    analysis = Analysis(target, DEBUG_MAX_FRAME.get())
    if requested >= _COMPILATIONS:
        events.subscribe(analysis.compiled, events.CompileEvent)
    if requested >= _EXECUTIONS:
        graph_abi.register_wrapper(analysis.wrapper)
        events.subscribe(analysis.executed, events.ExecuteEvent)
    if requested > _EXECUTIONS:
        SlowdownWarnings(target).start()


class Analysis:
    """Writes a block of lines for each event to `target` (`replica_output.target_of_replica`), with at most `max_frames` Python frames.

    Programs of eager mode have no cause, and are ignored.
    """

    def __init__(self, target: str, max_frames: int) -> None:
        self._target = target
        self._max_frames = max_frames
        # (line that asked for an execution, number of its results) → (frames, this replica's target). Kept because the event of an
        # execution may come when it is done, in a thread without the user's frames.
        self._asked: dict[tuple[str | None, int], tuple[tuple[str, ...], str]] = {}

    def compiled(self, event: events.CompileEvent) -> None:
        """Explain a compilation, and state the sizes of the program's inputs and results."""
        if event.cause is None:
            return
        target = replica_output.target_of_replica(self._target)
        graph: graph_abi.Graph = event.graph
        text = _block(Explained.COMPILATION, self._facts("Compilation Cause", event.cause, event, events.user_frames()))
        inputs = sum(leaf.nbytes for leaf in graph.inputs())
        results = sum(graph.operand(slot).nbytes for slot in graph.outs)
        sizes = [f"Graph input size: {inputs / _GB:.6f} GB", f"Graph output size: {results / _GB:.6f} GB"]
        replica_output.append(target, text + _block(Explained.COMPILED, sizes))

    def wrapper(self, graph: graph_abi.Graph, executable: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a program to note the user's frames in the thread that asks for its execution."""

        def run(*arguments: Any) -> Any:
            frames = events.user_frames()
            line = frames[0].rpartition(" (")[2].removesuffix(")") if frames else None
            self._asked[line, len(graph.outs)] = frames, replica_output.target_of_replica(self._target)
            return executable(*arguments)

        return run

    def executed(self, event: events.ExecuteEvent) -> None:
        """Explain an execution."""
        if event.cause is None:
            return
        frames, target = self._asked[event.line, event.num_outputs]
        explained = Explained.UNEXPECTED if event.cause is events.Cause.VALUE_READ else Explained.EXECUTION
        replica_output.append(target, _block(explained, self._facts("Execution Cause", event.cause, event, frames)))

    def _facts(
        self, heading: str, cause: events.Cause, event: events.CompileEvent | events.ExecuteEvent, frames: Sequence[str]
    ) -> list[str]:
        return [
            heading,
            f"  {_CAUSES[cause]}",
            "Graph Info:",
            f"  Graph Name: {event.name or '-'}",
            f"  {HASH}{event.graph_hash}",
            f"  Number of Graph Inputs: {event.num_inputs}",
            f"  Number of Graph Outputs: {event.num_outputs}",
            FRAMES,
            *[f"  {frame}" for frame in frames[: self._max_frames]],
            *(["  .........."] if len(frames) > self._max_frames else []),
        ]


def _block(explained: Explained, lines: Sequence[str]) -> str:
    return "".join(f"{explained.value}: {line}\n" for line in (OPENING, *lines, CLOSING))

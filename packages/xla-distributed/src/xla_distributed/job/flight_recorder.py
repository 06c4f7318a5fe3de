"""The flight recorder: collective programs that this process runs, compared with the other replicas before they run, watched later.

Every program with collectives has a number, counted alike on all replicas that run it: on all, or on the members of a group.

On CPU, where collectives that do not fit end the process by a signal, and those that fit by chance mix, the members tell each other
directly (`peers.py`) what they are about to do under that number, each time, and launch nothing before all have said the same: a
difference is an error on each, raised where the program would have been launched. The host waits there for the other hosts, not for any
device, and small programs wait for each other on CPU anyway.

On other devices nobody waits: the members compare a program before its first run, and keep a digest of all that they have launched.
That is compared where replicas meet (agreement on a new program, rendezvous, exit), and once a second by a thread that asks the others.

The same thread looks whether the oldest unfinished run still hangs, or is still compiled, and reports it to the job, which knows whether
others run something else or are lost.

All ways come through here: steps, captured steps and what `torch.compile` made by `_wrapped`, the collectives of a group
(`collectives/apart.py`) by `run_among`. Replicas that are threads compare each collective themselves (`thread_replicas.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

from xla_core.abi.graph import Graph, Operation, register_build_scope, register_wrapper
from xla_distributed.errors import CollectiveMismatchError, JobError, ProgramCutError, ReplicaLostError
from xla_distributed.job.client import JobClient
from xla_distributed.job.exit_status import Position, Runs
from xla_distributed.job.peers import Peers
from xla_distributed.job.recorded_runs import ProgramCollectives, runs_shown
from xla_distributed.job.run_recorder import MIXED, FlightRecorder

_recorder: FlightRecorder | None = None
_operations: dict[str, str] = {}  # name of an operation in graphs → that of its collective


def record_operation(name: str, collective: str) -> None:
    """Take the operation `name` of graphs for a collective, which all replicas must run alike."""
    _operations[name] = collective


def start(job_client: JobClient, timeout: Callable[[], float], peers: Peers | None) -> None:
    """Record the collective programs of this process from now on; `peers` confirm each before it is launched."""
    global _recorder
    _recorder = FlightRecorder(job_client, timeout, peers)
    job_client.on_disagreement = _recorder.disagreed
    job_client.on_inquiry = _recorder.status
    register_wrapper(_wrapped)
    register_build_scope(_building)
    threading.Thread(target=_recorder.watch, name="xla-job-watch", daemon=True).start()


def leave_to_parent() -> None:
    """In a child of `os.fork`: close the connections, which are its parent's."""
    if _recorder is not None and _recorder.peers is not None:
        _recorder.peers.close()


def counts() -> Runs:
    """How many programs with collectives this process has run, by group, up to one that failed."""
    if _recorder is None:
        return {}
    return {key: _recorder.failed.get(key, count + 1) - 1 for key, count in _recorder.counts.items()}


def run_among(members: Sequence[int], line: str, executable: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a program of one collective, `line` in words, that these replicas run, this one among them, and no others.

    Its last result is the token by which its end is known. Raises as `FlightRecorder.run`, and ReplicaLostError if it fails.
    """
    if _recorder is None:
        return executable(*arguments)
    try:
        return _recorder.run(_among(line, tuple(members)), executable, arguments)
    except JobError:
        raise
    except (RuntimeError, ValueError) as error:  # the latter is how JAX tells of a broken connection
        raise ReplicaLostError(explanation(_recorder.job_client, error) or f"{line} failed: {error}") from error


@lru_cache(maxsize=1024)
def _among(line: str, members: tuple[int, ...]) -> ProgramCollectives:
    return ProgramCollectives(line, (line,), members)


def position() -> Position:
    """`FlightRecorder.position` of this process."""
    return _recorder.position() if _recorder is not None else (0, "")


def positions() -> dict[str, Position]:
    """`FlightRecorder.position` by group."""
    return {key: _recorder.position(key) for key in _recorder.histories} if _recorder is not None else {}


def compare_positions(of_all: Sequence[Sequence[int | str]]) -> None:
    """`FlightRecorder.compare_positions` of this process, of all replicas."""
    if _recorder is not None:
        _recorder.compare_positions(of_all)


def mixed_up() -> CollectiveMismatchError | None:
    """The error of a process that has launched other programs with collectives than one that has left the job, and as many."""
    if _recorder is None:
        return None
    own_positions = positions()
    for rank, status in tuple(_recorder.job_client.exits.items()):
        for key, (count, history) in status.positions.items():
            if key in own_positions and own_positions[key][0] == count and own_positions[key][1] != history:
                own_runs = runs_shown(_recorder.job_client.rank, [run for run in tuple(_recorder.runs) if run.collectives.group == key])
                return CollectiveMismatchError(f"{MIXED}\n{own_runs}\nreplica {rank} ran others, and has left the job")
    return None


def finish() -> Exception | None:
    """Wait for the programs that this process has launched; the error of one that failed, if nobody has read its results."""
    recorder = _recorder
    if recorder is None or recorder.error_raised:
        return None
    token = next((run.token for run in reversed(tuple(recorder.runs)) if run.token is not None), None)
    if token is None:
        return None
    while not token.is_ready():  # type: ignore[attr-defined]
        time.sleep(0.01)  # Ctrl-C may come, and the watchdog if others do not
    try:
        token.block_until_ready()
    except RuntimeError as error:
        return error
    return None


def blocked() -> str | None:
    """`FlightRecorder.blocked` of this process."""
    return _recorder.blocked() if _recorder is not None else None


def _building(graph: Graph) -> AbstractContextManager[None]:
    """A scope for the compilation of a program: others may wait for it if it holds collectives."""
    collectives = _collectives(graph) if _recorder is not None else None
    return nullcontext() if _recorder is None or collectives is None else _recorder.build(collectives)


def _wrapped(graph: Graph, executable: Callable[..., Any]) -> Callable[..., Any]:
    """The executable, with an entry in the recorder if it holds collectives."""
    recorder = _recorder
    collectives = _collectives(graph)
    if recorder is None or collectives is None:
        return executable

    def run(*arguments: Any) -> Any:
        try:
            return recorder.run(collectives, executable, arguments)
        except ProgramCutError as error:
            error.slot = _collectives_of(graph)[error.shared - 1].slot
            raise

    return run


def _collectives(graph: Graph) -> ProgramCollectives | None:
    operations = _collectives_of(graph)
    if not operations:
        return None
    # Not of the users' lines: replicas may issue the same collective at different ones.
    return ProgramCollectives("\n".join(operation.text for operation in operations), tuple(_line(operation) for operation in operations))


def _collectives_of(graph: Graph) -> list[Operation]:
    return [operation for operation in graph.operations() if operation.name in _operations]


def _line(operation: Operation) -> str:
    text = f"{_operations[operation.name]}{operation.text.removeprefix(operation.name)}".partition(";")[0]
    return f"{text}{f'  # {operation.line}' if operation.line else ''}"


def explanation(job_client: JobClient, error: BaseException) -> str | None:
    """Explain a failed execution of this process; None if nothing is known."""
    recorder = _recorder
    if recorder is None or not recorder.runs:
        return None
    recorder.error_raised = True
    run = recorder.oldest() or recorder.runs[-1]
    deadline = time.monotonic() + 2.0
    while not job_client.exits and "Timed out" not in str(error) and time.monotonic() < deadline:
        time.sleep(0.05)  # the news of a death may be slower than the broken connection
    if job_client.exits:
        return f"{job_client.losses()}; {recorder.shown(run)}"
    others = job_client.disagreements.get(run.name)
    if others:
        return "\n".join([recorder.shown(run), *others.values()])
    if "Timed out" in str(error):
        return f"{recorder.shown(run)}\n{job_client.not_in(run.name, run.collectives.members)}"
    return None

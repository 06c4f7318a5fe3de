"""Objects and bytes between replicas: processes of a job, through its store, or threads of a process."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch_xla
import torch_xla.core.xla_model as xm
from xla_core.abi.job import ordinal, world_size
from xla_core.abi.tensors import to_cpu
from xla_distributed.errors import CollectiveMismatchError
from xla_distributed.job import connection, flight_recorder, thread_replicas
from xla_distributed.job.exit_status import describe_error


def _exchange(payload: bytes, tag: str | None) -> list[bytes]:
    """The payloads of all. Raises CollectiveMismatchError, on all, if they came with different tags, or have run different collectives."""
    if thread_replicas.is_thread_replica():
        return thread_replicas.exchange(f"rendezvous {tag!r}", payload)
    what = f"rendezvous {tag!r} of replica {ordinal()}"
    mine = json.dumps([what, tag, flight_recorder.position()]).encode()
    found = connection.job_client().exchange("rendezvous", mine + b"\n" + payload, connection.timeout(), what)
    parts = [part.partition(b"\n") for part in found]
    headers = [json.loads(header) for header, _, _ in parts]
    different = next((other for other, its_tag, _ in headers if its_tag != tag), None)
    if different is not None:
        raise CollectiveMismatchError(f"replicas disagree on what they do: each must come to the same rendezvous.\n{what}\n{different}")
    flight_recorder.compare_positions([its_position for _, _, its_position in headers])
    return [payload for _, _, payload in parts]


def xla_rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """The payloads of all replicas, in order of their ordinals."""
    if not isinstance(payload, bytes):
        raise TypeError(f"the payload of a rendezvous is bytes, got {type(payload).__name__}")
    if ordinals and len(ordinals) != world_size():
        raise ValueError(f"a rendezvous takes all {world_size()} replicas, got ordinals {list(ordinals)}")
    torch_xla.sync()
    parts = _exchange(payload, tag)
    torch_xla.sync()
    return parts


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """`reduce_fn` of the data of all replicas, on every one. Only processes of this job can have sent what is unpickled here."""
    cpu = to_cpu(data)
    parts = xm.rendezvous(tag, pickle.dumps(cpu))
    return reduce_fn([pickle.loads(part) for part in parts])  # noqa: S301


def do_on_ordinals(target: Callable[..., Any], data: Any = (), ordinals: Sequence[int] | int = (0,)) -> Any:
    """`target(*data)` with CPU tensors on the replicas `ordinals`, None on others; then a rendezvous of all.

    An exception of `target` propagates there; the others get an error that names this replica.
    """
    chosen = [ordinals] if isinstance(ordinals, int) else list(ordinals)
    running = ordinal() in chosen
    cpu = to_cpu(data, convert=running)
    result = None
    try:
        if running:
            result = target(*cpu)
    except BaseException as error:
        if not thread_replicas.is_thread_replica():  # a thread that raises is missed as it is
            connection.job_client().leave(f"{describe_error(error)}, in do_on_ordinals", flight_recorder.counts())
        raise
    xm.rendezvous("torch_xla.core.xla_model.do_on_ordinals")
    return result


OFFERED: dict[str, Callable[..., Any]] = {
    "torch_xla.core.xla_model.do_on_ordinals": do_on_ordinals,
    "torch_xla.core.xla_model.mesh_reduce": mesh_reduce,
    "torch_xla.core.xla_model.xla_rendezvous": xla_rendezvous,
}

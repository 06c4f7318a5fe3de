"""Bytes between replicas: processes of a job, through its store, or threads of a process."""

from __future__ import annotations

import json

from xla_core.abi.job import ordinal
from xla_distributed.errors import CollectiveMismatchError
from xla_distributed.job import connection, flight_recorder, thread_replicas
from xla_distributed.job.exit_status import describe_error


def exchange(payload: bytes, tag: str | None) -> list[bytes]:
    """The payloads of all. Raises CollectiveMismatchError, on all, if they came with different tags, or have run different collectives."""
    if thread_replicas.is_thread_replica():
        return thread_replicas.exchange(f"rendezvous {tag!r}", payload)
    what = f"rendezvous {tag!r} of replica {ordinal()}"
    mine = json.dumps([what, tag, flight_recorder.position()]).encode()
    messages = connection.job_client().exchange("rendezvous", mine + b"\n" + payload, connection.timeout(), what)
    parts = [message.partition(b"\n") for message in messages]
    headers = [json.loads(header) for header, _, _ in parts]
    different = next((other for other, its_tag, _ in headers if its_tag != tag), None)
    if different is not None:
        raise CollectiveMismatchError(f"replicas disagree on what they do: each must come to the same rendezvous.\n{what}\n{different}")
    flight_recorder.compare_positions([its_position for _, _, its_position in headers])
    return [payload for _, _, payload in parts]


def fail(error: BaseException, doing: str) -> None:
    """Tell the other processes of the job what ended this one. A thread that raises is missed as it is."""
    if not thread_replicas.is_thread_replica():
        connection.job_client().leave(f"{describe_error(error)}, in {doing}", flight_recorder.counts())

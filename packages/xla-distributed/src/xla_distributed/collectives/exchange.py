"""Bytes between replicas: processes of a job, through its store, or threads of a process."""

from __future__ import annotations

import json

from xla_core.abi.job import ordinal
from xla_distributed.errors import CollectiveMismatchError
from xla_distributed.job import connection, flight_recorder, thread_replicas
from xla_distributed.job.exit_status import describe_error


def exchange(payload: bytes, tag: str | None) -> list[bytes]:
    """The payloads of all replicas. Raises CollectiveMismatchError, on all, if their tags or the collectives that they have run differ."""
    if thread_replicas.is_thread_replica():
        return thread_replicas.exchange(f"rendezvous {tag!r}", payload)
    text = f"rendezvous {tag!r} of replica {ordinal()}"
    own_header = json.dumps([text, tag, flight_recorder.position()]).encode()
    messages = connection.job_client().exchange("rendezvous", own_header + b"\n" + payload, connection.timeout(), text)
    parts = [message.partition(b"\n") for message in messages]
    headers = [json.loads(header) for header, _, _ in parts]
    mismatched = next((other for other, its_tag, _ in headers if its_tag != tag), None)
    if mismatched is not None:
        raise CollectiveMismatchError(f"replicas disagree on what they do: each must come to the same rendezvous.\n{text}\n{mismatched}")
    flight_recorder.compare_positions([its_position for _, _, its_position in headers])
    return [payload for _, _, payload in parts]


def fail(error: BaseException, doing: str) -> None:
    """Tell the other processes of the job what ended this one. For a thread, its rendezvous does so when it raises."""
    if not thread_replicas.is_thread_replica():
        connection.job_client().leave(f"{describe_error(error)}, in {doing}", flight_recorder.counts())

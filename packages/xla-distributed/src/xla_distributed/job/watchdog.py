"""Ends this process if it waits in XLA for replicas that will not come: nothing could be raised there.

What waits in Python gets an error by itself, and may go on with what needs no others, such as saving what it has.
"""

from __future__ import annotations

import threading
import time

from xla_core.abi.process import started
from xla_distributed.errors import ReplicaLostError
from xla_distributed.job import flight_recorder
from xla_distributed.job.client import JobClient
from xla_distributed.job.shutdown import exit_with_error

# How long what waits may still fail by itself, with an error that the program can catch: from when the processes that have left have ended,
# which closes their connections, and in all.
_GRACE_SECONDS, _LONGEST_SECONDS = 3.0, 5.0
_CHECK_SECONDS = 0.2


def start(job_client: JobClient) -> None:
    """Watch over this process, which has joined its job, in a thread of its own."""
    threading.Thread(target=_watch, args=(job_client,), name="xla-job-watchdog", daemon=True).start()


def _watch(job_client: JobClient) -> None:
    # While all goes well this thread only sleeps.
    job_client.wait_for_losses()
    doing, since, closed = None, 0.0, 0.0
    while True:
        last, doing, now = doing, _blocked(job_client), time.monotonic()
        # It got on to other work: the time begins anew.
        if doing is None or doing != last:
            since = closed = now
        elif not job_client.all_exited_have_ended():
            closed = now
        if doing is not None and (now - closed > _GRACE_SECONDS or now - since > _LONGEST_SECONDS):
            exit_with_error(ReplicaLostError(f"{job_client.losses()}; {doing}"))
        time.sleep(_CHECK_SECONDS)


def _blocked(job_client: JobClient) -> str | None:
    """The work that this process cannot finish without the replicas that are lost, in words; None if there is none."""
    if not started():
        return f"replica {job_client.rank} starts its devices, for which all replicas are needed" if job_client.failed() else None
    return flight_recorder.blocked()

"""Ends this process if it waits in XLA for replicas that will not come: nothing could be raised there.

What waits in Python is told of a loss by itself, and may go on with what needs no others, such as saving what it has.
"""

from __future__ import annotations

import threading
import time

import torch_xla._XLAC as _XLAC
from xla_distributed import ledger
from xla_distributed.ending import end_process
from xla_distributed.errors import ReplicaLostError
from xla_distributed.member import Member

# How long what waits may still fail by itself, with an error that the program can catch: from when the processes that have left have ended,
# which closes their connections, and in all.
_GRACE_SECONDS, _LONGEST_SECONDS = 3.0, 5.0
_LOOK_EVERY = 0.2


def start(joined: Member) -> None:
    """Watch over this process, which has joined its job, in a thread of its own."""
    threading.Thread(target=_watch, args=(joined,), name="xla-job-watchdog", daemon=True).start()


def _watch(joined: Member) -> None:
    joined.wait_for_losses()
    doing, since, closed = None, 0.0, 0.0
    while True:
        last, doing, now = doing, _doomed(joined), time.monotonic()
        if doing is None or doing != last:
            since = closed = now
        elif not joined.the_gone_have_ended():
            closed = now
        if doing is not None and (now - closed > _GRACE_SECONDS or now - since > _LONGEST_SECONDS):
            end_process(ReplicaLostError(f"{joined.losses()}; {doing}"))
        time.sleep(_LOOK_EVERY)


def _doomed(joined: Member) -> str | None:
    """Describe what this process cannot bring to an end; None if there is nothing."""
    if not _XLAC._xla_runtime_is_initialized():
        return f"replica {joined.rank} starts its devices, for which all replicas are needed" if joined.failed() else None
    return ledger.doomed()

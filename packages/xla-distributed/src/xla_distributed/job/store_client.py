"""Find the store by which the processes of a job meet, and wait there for what process 0 publishes."""

from __future__ import annotations

import queue
import socket
import threading
import time
from datetime import timedelta

from torch.distributed import DistStoreError, Store, TCPStore  # type: ignore[attr-defined]

from xla_distributed.errors import JobError, ReplicaLostError, ReplicaTimeoutError
from xla_distributed.job.waiting import Wait

_LONGEST_PAUSE = 1.0
# How long torch's store tries again to get a right answer, and how long whatever listens at its address may say nothing at all.
_RETRY_SECONDS, _SILENT_SECONDS = 3.0, 20.0


def connect(host: str, port: int, rank: int, wait: Wait) -> Store:
    """The store that another process serves, as soon as it does.

    Raises JobError if another program listens there, ReplicaTimeoutError if nobody does in time.
    """
    pause = 0.02
    while True:
        try:
            # torch's store waits without a word where nobody listens.
            socket.create_connection((host, port), max(1.0, wait.until_notice())).close()
            break
        except OSError as error:
            if not wait.left():
                raise ReplicaTimeoutError(
                    f"process {rank} found nobody at {host}:{port} (MASTER_ADDR, MASTER_PORT) for {wait.timeout:.0f} s: {error}. "
                    "Process 0 listens there once it uses its devices: see whether it runs and what it says"
                ) from error
            reason = str(error)
        wait.notice(lambda: f"process 0, which does not listen there yet ({reason})")  # noqa: B023  # called at once
        time.sleep(min(pause, wait.left()))
        pause = min(_LONGEST_PAUSE, pause * 2)
    store = _greeted(host, port)
    store.set_timeout(timedelta(seconds=wait.timeout))
    return store


def _greeted(host: str, port: int) -> Store:
    """The store behind an address where somebody listens. Raises JobError if that is no store."""
    results: queue.SimpleQueue[Store | Exception] = queue.SimpleQueue()

    def greet() -> None:
        try:
            wait = timedelta(seconds=_RETRY_SECONDS)
            results.put(TCPStore(host, port, is_master=False, timeout=wait, wait_for_workers=False, multi_tenant=True))
        except (RuntimeError, OSError) as error:
            results.put(error)

    # torch heeds no timeout while it waits for the answer of somebody who gives none.
    threading.Thread(target=greet, name="xla-job-store", daemon=True).start()
    try:
        result = results.get(timeout=_SILENT_SECONDS)
    except queue.Empty:
        result = TimeoutError(f"it said nothing for {_SILENT_SECONDS:.0f} s")
    if isinstance(result, Exception):
        raise JobError(
            f"another program listens at {host}:{port} (MASTER_ADDR, MASTER_PORT), where process 0 of the job should: {result}. "
            "Set MASTER_PORT to a port that is free there, the same for all processes"
        ) from result
    return result


def get(store: Store, name: str, who: str, wait: Wait) -> bytes:
    """What process 0 publishes under a name. who: waits, and where. Raises ReplicaTimeoutError, ReplicaLostError if the store is gone."""
    while True:
        try:
            store.wait([name], timedelta(seconds=max(0.01, wait.until_notice())))
            return store.get(name)
        except DistStoreError as error:
            if not wait.left():
                raise ReplicaTimeoutError(f"{who}, waited {wait.timeout:.0f} s for process 0, which has not started its devices") from error
        except RuntimeError as error:
            raise ReplicaLostError(f"{who}, lost the store of process 0: that has ended ({error})") from error
        wait.notice(lambda: "process 0, which has not started its devices yet")

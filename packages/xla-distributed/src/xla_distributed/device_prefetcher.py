"""The device prefetcher: batches for one device, queued on the host, uploaded ahead by threads, handed out in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from xla_distributed.errors import LoaderClosedError


class DevicePrefetcher:
    """The queues of batches for one device.

    host_size: batches that wait for their upload; device_size: batches that wait on the device, or are on their way to it;
    threads: that upload; upload: makes a device batch of a host batch.
    """

    def __init__(self, upload: Callable[[Any], Any], host_size: int, device_size: int, threads: int) -> None:
        self._upload = upload
        self._host_size = host_size
        self._device_size = device_size
        self._condition = threading.Condition()
        self._host: deque[Any] = deque()
        self._ready: dict[int, Any] = {}
        self._taken = 0  # batches whose upload has begun
        self._handed_out = 0  # batches handed out
        self._total: int | None = None  # batches in all, once known
        self._error: BaseException | None = None
        self._closed = False
        self._abandoned = False
        self._threads = [threading.Thread(target=self._work, name="xla-loader-upload", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def put(self, batch: Any) -> None:
        """Add a host batch; blocks while the queue is full. Raises LoaderClosedError."""
        with self._condition:
            self._condition.wait_for(lambda: self._closed or self._abandoned or len(self._host) < self._host_size)
            if self._closed:
                raise LoaderClosedError
            if self._abandoned:
                return
            self._host.append(batch)
            self._condition.notify_all()

    def end(self, error: BaseException | None = None) -> None:
        """Mark the end of the batches; `get` raises `error` after the last one."""
        with self._condition:
            if self._total is None:
                self._total = self._taken + len(self._host)
                self._error = error
            self._condition.notify_all()

    def get(self) -> tuple[Any] | None:
        """The next device batch, in a tuple; None after the last. Raises what reading or uploading it raised."""
        with self._condition:
            self._condition.wait_for(lambda: self._closed or self._handed_out in self._ready or self._handed_out == self._total)
            if self._handed_out not in self._ready:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                return None
            batch = self._ready.pop(self._handed_out)
            self._handed_out += 1
            self._condition.notify_all()
            return (batch,)

    def abandon(self) -> None:
        """Drop the batches that wait and all that follow: nobody takes them any more."""
        with self._condition:
            self._abandoned = True
            self._host.clear()
            self._ready.clear()
            self._condition.notify_all()

    def close(self) -> None:
        """Drop the batches that wait, and end the threads."""
        with self._condition:
            self._closed = True
            self._host.clear()
            self._ready.clear()
            self._condition.notify_all()

    def join(self) -> None:
        """Wait for the threads of a closed prefetcher."""
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closed or self._exhausted() or self._may_upload())
                if self._closed or not self._may_upload():
                    return
                index = self._taken
                batch = self._host.popleft()
                self._taken += 1
                self._condition.notify_all()
            try:
                uploaded = self._upload(batch)
            except BaseException as error:  # raised to whoever takes the batch
                with self._condition:
                    self._total, self._error = index, error
                    self._host.clear()
                    self._condition.notify_all()
                return
            with self._condition:
                if not self._closed:
                    self._ready[index] = uploaded
                self._condition.notify_all()

    def _may_upload(self) -> bool:
        return bool(self._host) and self._taken - self._handed_out < self._device_size

    def _exhausted(self) -> bool:
        return self._total is not None and self._taken >= self._total

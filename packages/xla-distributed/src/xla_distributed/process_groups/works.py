"""The handles that collectives of `torch.distributed` return: of recorded collectives, and of tensors that are still to arrive."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work


class RecordedWork(Work):
    """A collective that was recorded: its results are there, as lazily as any other."""

    def __init__(self, results: Any) -> None:
        super().__init__()
        self._results = results

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True: whoever reads the results waits for them."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True: failures show where results are read."""
        return True

    def result(self) -> Any:
        """The tensors."""
        return self._results

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that is done."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._results)
        return future


class ReceivingWork(Work):
    """A `recv` under way.

    receive: waits up to so many seconds (None: as long as the group does), fills the tensor and gives the rank that it came from;
    arrived: whether it would do so at once.
    """

    def __init__(self, tensor: torch.Tensor, receive: Callable[[float | None], int], arrived: Callable[[], bool]) -> None:
        super().__init__()
        self._tensor = tensor
        self._receive = receive
        self._arrived = arrived
        self._source: int | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True when the tensor is filled. Raises ReplicaLostError, ReplicaTimeoutError."""
        if self._source is None:
            self._source = self._receive(timeout.total_seconds() if timeout else None)
        return True

    def is_completed(self) -> bool:
        """Whether the tensor is filled; fills it if its message has arrived."""
        if self._source is None and self._arrived():
            self.wait()
        return self._source is not None

    def is_success(self) -> bool:
        """As `is_completed`."""
        return self.is_completed()

    def result(self) -> Any:
        """The tensor, in a list; waits for it."""
        self.wait()
        return [self._tensor]

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that is done; waits for the tensor."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self.result())
        return future

    def _source_rank(self) -> int:
        """The rank, in the group, that the tensor came from; torch asks when a receiver named none."""
        self.wait()
        return self._source if self._source is not None else -1

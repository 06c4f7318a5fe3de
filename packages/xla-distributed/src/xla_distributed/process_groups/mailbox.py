"""Tensors and small data between two members of a process group, on the host, through the job's store.

A program on the device would have to be launched by both sides in one order, and a receiver that names no sender does not know which.
"""

from __future__ import annotations

import io
import json
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from xla_core.abi.job import ordinal
from xla_distributed.collectives.recording import run_pending
from xla_distributed.job import connection


class Mailbox:
    """The messages of one group.

    name: of the group, the same on all its members and no other's; members: their ordinals in line; timeout: in seconds.
    """

    def __init__(self, name: Callable[[], str], members: Sequence[int], timeout: float) -> None:
        self._name = name
        self._members = tuple(members)
        self._timeout = timeout
        self._counts: Counter[tuple[int, int, int]] = Counter()  # by sender, receiver and tag

    def timeout(self) -> float:
        """Seconds that members wait for each other."""
        return min(self._timeout, connection.timeout())

    def exchange(self, operation: str, data: Any, timeout: float | None = None) -> list[Any]:
        """Exchange data that JSON can hold: the data of all members, in the order of their ranks. Waits for all, `timeout` seconds.

        Raises ReplicaLostError, ReplicaTimeoutError with the ordinals that did not arrive.
        """
        if len(self._members) == 1:
            return [data]
        run_pending()
        kind = f"{operation} of group {self._name()} of replicas {list(self._members)}"
        text = f"replica {ordinal()} waits in a {kind}"
        limit = self.timeout() if timeout is None else timeout
        parts = connection.job_client().exchange(kind, json.dumps(data).encode(), limit, text, self._members)
        by_ordinal = dict(zip(sorted(self._members), parts, strict=True))
        return [json.loads(by_ordinal[member]) for member in self._members]

    def send(self, tensor: torch.Tensor, target: int, tag: int) -> None:
        """Post a tensor to the member of rank `target`. Raises ReplicaLostError if it is gone."""
        _warn_once()
        sender, receiver = ordinal(), self._members[target]
        file = io.BytesIO()
        torch.save(tensor.detach().cpu(), file)
        connection.job_client().post(receiver, self._next_name(sender, receiver, tag), file.getvalue())
        run_pending()  # after the post: its receiver may come to these collectives only then

    def receiver(self, tensor: torch.Tensor, source: int | None, tag: int) -> tuple[Callable[[float | None], int], Callable[[], bool]]:
        """The functions that fill `tensor` with the next one from a member (None: from any), for `ReceivingWork`.

        Tensors from a member arrive in the order in which receivers of that member were made.
        """
        _warn_once()
        receiver = ordinal()
        fixed = None if source is None else {self._next_name(self._members[source], receiver, tag): self._members[source]}

        def senders() -> dict[str, int]:
            others = [member for member in self._members if member != receiver]
            return fixed or {self._name_of(sender, receiver, tag, self._counts[sender, receiver, tag] + 1): sender for sender in others}

        def receive(timeout: float | None) -> int:
            run_pending()
            expected = senders()
            name, payload = connection.job_client().take(expected, self.timeout() if timeout is None else timeout)
            if fixed is None:
                self._counts[expected[name], receiver, tag] += 1
            _fill_from(tensor, torch.load(io.BytesIO(payload), weights_only=True), name)
            return self._members.index(expected[name])

        return receive, lambda: connection.job_client().has_arrived(senders())

    def _next_name(self, sender: int, receiver: int, tag: int) -> str:
        self._counts[sender, receiver, tag] += 1
        return self._name_of(sender, receiver, tag, self._counts[sender, receiver, tag])

    def _name_of(self, sender: int, receiver: int, tag: int, count: int) -> str:
        return f"tensor {count} from {sender} to {receiver} with tag {tag} in group {self._name()}"


def _fill_from(tensor: torch.Tensor, received: torch.Tensor, name: str) -> None:
    if received.numel() != tensor.numel() or received.dtype != tensor.dtype:
        raise RuntimeError(
            f"recv into {tensor.dtype} of shape {tuple(tensor.shape)}: {name} is {received.dtype} of shape {tuple(received.shape)}"
        )
    with torch.no_grad():
        tensor.data.copy_(received.reshape(tensor.shape))


@cache
def _warn_once() -> None:
    warnings.warn("send and recv on xla devices go through the job's store, on the host: for small tensors only", stacklevel=4)

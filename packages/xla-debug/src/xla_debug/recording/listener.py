"""A base class that subscribes to all events that take time: compilations, executions, copies, fallbacks, syncs and waits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from xla_debug.core import collectives, events


class Listener(ABC):
    """Handles the events of this process from `start` to `stop`, in the threads where they happen."""

    def __init__(self) -> None:
        self._unsubscribe: list[Callable[[], None]] = []

    def start(self) -> None:
        """Subscribe to the events."""
        self._unsubscribe = [
            events.subscribe(self._compiled, events.CompileEvent),
            events.subscribe(self._executed, events.ExecuteEvent),
            events.subscribe(self._moved, events.TransferEvent),
            events.subscribe(self._fell_back, events.FallbackEvent),
            events.subscribe(self._synced, events.SyncEvent),
            events.subscribe(self._waited_for_replicas, collectives.ReplicaWaitEvent),
        ]

    def stop(self) -> None:
        """Unsubscribe; what was recorded stays."""
        for end in self._unsubscribe:
            end()
        self._unsubscribe = []

    @abstractmethod
    def _compiled(self, event: events.CompileEvent) -> None: ...

    @abstractmethod
    def _executed(self, event: events.ExecuteEvent) -> None: ...

    @abstractmethod
    def _moved(self, event: events.TransferEvent) -> None: ...

    @abstractmethod
    def _fell_back(self, event: events.FallbackEvent) -> None: ...

    @abstractmethod
    def _synced(self, event: events.SyncEvent) -> None: ...

    @abstractmethod
    def _waited_for_replicas(self, event: collectives.ReplicaWaitEvent) -> None: ...

"""The client as other packages see it; its recorders are private to the engine."""

from __future__ import annotations

from typing import Protocol

import jax

from xla_core.engine.runtime import client


class ClientView(Protocol):
    """What kind of hardware, which devices, and where data is unless it was told otherwise."""

    @property
    def kind(self) -> str:
        """The hardware kind in upper case (`CPU`, `CUDA`, `TPU`, …)."""
        ...

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The devices that this process addresses."""
        ...

    @property
    def default_shardings(self) -> tuple[jax.sharding.Sharding, ...]:
        """For each device of torch (`xla:0`, …), the sharding of buffers without a sharding of their own."""
        ...


def view() -> ClientView:
    """The process's client, for other packages; starts it if needed. Raises as `client.client`."""
    return client.client()

"""Which implementation of a kernel runs: the one place that decides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xla_core.engine.runtime.client import FAMILIES, device_kind

Function = Callable[..., Any]


def platform() -> str:
    """`tpu`, `gpu` or `cpu`: what programs are compiled for."""
    return FAMILIES.get(device_kind() or "", "cpu")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One computation over jax arrays, with the kernels that JAX ships for it.

    reference: plain jax.numpy, for any shapes, on any platform. tpu, gpu: called with the same arguments; each returns None for those that
    its kernel does not take, and the reference serves these.
    """

    reference: Function
    tpu: Function | None = None
    gpu: Function | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        native = {"tpu": self.tpu, "gpu": self.gpu}.get(platform())
        found = None if native is None else native(*args, **kwargs)
        return self.reference(*args, **kwargs) if found is None else found

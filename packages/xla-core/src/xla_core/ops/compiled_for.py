"""What is being lowered for, told to those who get no context: to jax, which asks this process for devices, and to helpers of lowerings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import jax

_platform: ContextVar[str] = ContextVar("_platform", default="cpu")


def is_cpu() -> bool:
    """Whether the program that is being lowered is for the CPU; also true where nobody says what it is for."""
    return _platform.get() == "cpu"


@contextmanager
def compiled_for(platform: str, model: jax.sharding.AbstractDevice | None) -> Iterator[None]:
    """Within, programs are lowered for a platform, as `jax.Device.platform`, and kernels for TPUs for a model, as `Context` has both."""
    token = _platform.set(platform)
    # Inside a mapped function jax has the devices of its mesh.
    told = model is None or platform != "tpu" or not jax.sharding.get_abstract_mesh().empty
    try:
        with nullcontext() if told else jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=model)):
            yield
    finally:
        _platform.reset(token)

"""The private names of torch and jax that this package needs, each behind a function named for its purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def trace_log_is_written() -> bool:
    """Whether torch writes its trace log, which `TORCH_TRACE=FOLDER` asks for and `tlparse` reads."""
    from torch._logging import _internal

    # torch always installs this handler; without a folder it writes nothing.
    return any(getattr(handler, "root_dir", handler) is not None for handler in _internal.trace_log.handlers)


def write_to_trace_log(name: str, payload: str | Mapping[str, Any]) -> None:
    """Write an artifact to torch's trace log: a text as it is, a mapping as JSON."""
    from torch._logging._internal import trace_structured

    encoding = "string" if isinstance(payload, str) else "json"
    trace_structured("artifact", lambda: {"name": name, "encoding": encoding}, payload_fn=lambda: payload, expect_trace_id=False)


def profiler_session(host_level: int = 2, device_level: int = 1, python_level: int = 1) -> Any:
    """Start a profile; the session's `stop` returns the profile as XLA encodes it. Raises RuntimeError if another profile is being made.

    `jax.profiler.start_trace` will not do: it writes to a folder, makes JSON as well, and starts the devices.
    """
    import jax
    from jax._src.lib import _profiler

    options = jax.profiler.ProfileOptions()
    options.host_tracer_level, options.device_tracer_level, options.python_tracer_level = host_level, device_level, python_level
    options.raise_error_on_start_failure = True
    return _profiler.ProfilerSession(options)


class MosaicError(Exception):
    """Bytes that are no kernel's module."""


@contextmanager
def mosaic_module(content: bytes) -> Iterator[Any]:
    """A Pallas kernel's module for TPUs, from the bytes in its custom call. Raises `MosaicError` for others, and where jax has no reader.

    jax has the reader of MLIR in public, but not the types of TPUs' memory.
    """
    try:
        from jax._src.lib import tpu  # type: ignore[attr-defined]
        from jax.extend.mlir import ir
    except ImportError as error:
        raise MosaicError(f"this jax cannot read kernels for TPUs: {error}") from error

    with ir.Context() as context:
        tpu.register_dialect(context)
        context.load_all_available_dialects()
        context.allow_unregistered_dialects = True
        try:
            module = ir.Module.parse(content)
        except ir.MLIRError as error:
            raise MosaicError(str(error)) from error
        yield module

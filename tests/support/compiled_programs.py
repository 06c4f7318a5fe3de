"""Programs compiled for devices that are not there, for tests that read them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import torch_xla
from xla_core.abi.graph import register_wrapper

_COMPILERS = {"h": "jax_cuda13_plugin", "a": "jax_cuda13_plugin", "b": "jax_cuda13_plugin", "v": "libtpu", "t": "libtpu"}


@contextmanager
def compiled_for(target: str) -> Iterator[list[Any]]:
    """The programs that are compiled within for a target (`v5e:2x4`, `h100`), as jax has them. Skips the test without the compiler."""
    module = _COMPILERS.get(target[0])
    if module is not None and importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}: hatch run targets:test")
    compiled: list[Any] = []

    def note(graph: object, program: Any) -> Any:
        compiled.append(program.compiled)
        return program

    torch_xla.sync()
    with torch_xla.target(target):
        stop = register_wrapper(note)
        try:
            yield compiled
        finally:
            stop()


def kernels_in(program: Any) -> list[str]:
    """The Pallas kernels of a compiled program, by the names of what calls them; those that XLA itself writes so do not count."""
    calls = r'custom_call_target="(?:tpu_custom_call|__gpu\$xla\.gpu\.triton)".*?op_name="([^"]*)"'
    return [name for name in re.findall(calls, program.as_text(), re.DOTALL) if name.endswith("pallas_call")]


def products_in(program: Any) -> int:
    """How many matrix products and convolutions a compiled program has beside its kernels."""
    text = program.as_text()
    return len(re.findall(r" (?:dot|convolution|ragged-dot)\(", text)) + text.count("__cublas$") + text.count("__triton_gemm")

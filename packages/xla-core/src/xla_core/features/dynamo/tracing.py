"""Tell `torch.compile` that xla tensors are plain tensors on another device, whatever their Python type.

Dynamo treats instances of a subclass with a `__torch_dispatch__` of its own as opaque objects, and would trace through the frames
that record operations. Nothing here imports dynamo, which takes seconds: dynamo is set up when something else imports it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

import torch

from xla_core.base import private_torch
from xla_core.engine.tensor import autocast, device
from xla_core.engine.tensor.refusals import dynamo_is_imported
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.features.dynamo import interface

Ready = Callable[[Any], None]


_expected: dict[str, Ready] = {}


class _Finder(MetaPathFinder):
    """Finds an expected module as usual, and calls its `ready(module)` once it is loaded."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> ModuleSpec | None:
        """The module's own spec, with a loader that calls `ready` at the end; None for modules that are not expected."""
        ready = _expected.pop(fullname, None)
        spec = None if ready is None else PathFinder.find_spec(fullname, path, target)
        if ready is None or spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_then_tell(module: types.ModuleType) -> None:
            load(module)
            ready(module)

        spec.loader.exec_module = load_then_tell  # type: ignore[method-assign]
        return spec


def when_imported(name: str, ready: Ready) -> None:
    """Call `ready(module)` now if the module is loaded, else once it is."""
    module = sys.modules.get(name)
    if module is not None:
        ready(module)
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _expected[name] = ready


def _trace_xla_tensors(builder: Any) -> None:
    private_torch.trace_as_plain_tensor(builder, XLATensor)


def _own_frames() -> list[types.CodeType]:
    """Code of the functions through which a user's program records operations."""
    some = torch.ops.aten.mm.default
    functions: list[Any] = [entry for entry in vars(XLATensor).values() if isinstance(entry, types.FunctionType)]
    dispatch: Any = XLATensor.__torch_dispatch__
    functions += [dispatch.__func__, device._fallback, device.direct(some), autocast._kernel(some, autocast.lower)]
    return [function.__code__ for function in functions]


def register() -> None:
    """Keep dynamo out of our own frames, and let it trace xla tensors once it is imported. No operation imports it before."""
    for code in _own_frames():
        private_torch.never_trace(code)
    private_torch.trace_constants_on_the_host(XLATensor)
    when_imported("torch._dynamo", lambda module: dynamo_is_imported())
    when_imported("torch._dynamo.variables.builder", _trace_xla_tensors)
    when_imported("torch._dynamo.device_interface", interface.register)

"""Name operations in profiles after the module whose forward, or backward, recorded them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from xla_debug.core import abi, budget, graph, metrics

_MARK = "xla_module"


class _OpenScopes(threading.local):
    """The modules that this thread is in: their paths and scopes. backward: the scope of the autograd node that runs."""

    def __init__(self) -> None:
        self.modules: list[tuple[str, AbstractContextManager[None]]] = []
        self.backward: AbstractContextManager[None] | None = None


_open = _OpenScopes()


@budget()
@contextmanager
def name_modules(model: torch.nn.Module) -> Iterator[None]:
    """Name the operations that `model` records in the block by their module's path, `encoder.0`, in profiles; backward too.

    Enter it before the first step: programs that are compiled already keep their names. Inside, each operation keeps its own line,
    as with `XLA_IR_DEBUG=1`, which costs microseconds for each, and no step may end within a module's forward.
    """
    paths = {module: path for path, module in model.named_modules() if path}
    handles = [handle for module, path in paths.items() for handle in _hooked(module, path)]
    graph.capture_lines(True)
    try:
        yield
    finally:
        graph.capture_lines(_lines_are_kept())
        for handle in handles:
            handle.remove()


def _lines_are_kept() -> bool:
    (setting,) = (entry for rows in abi.settings.installed_settings().values() for entry in rows if entry.name == "XLA_IR_DEBUG")
    return bool(setting.get())


def _hooked(module: torch.nn.Module, path: str) -> tuple[Any, Any]:
    def enter(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        outer = _open.modules[-1][0] if _open.modules else ""
        scope = metrics.scope(path.removeprefix(f"{outer}.") if outer else path)
        scope.__enter__()
        _open.modules.append((path, scope))

    def leave(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        if _open.modules:
            _open.modules.pop()[1].__exit__(None, None, None)
        _mark(_nodes(result), _nodes((args, kwargs)), path)

    return module.register_forward_pre_hook(enter), module.register_forward_hook(leave, with_kwargs=True, always_call=True)


def _nodes(values: Any) -> list[Any]:
    """List the autograd nodes that made the tensors of a nesting."""
    if isinstance(values, torch.Tensor):
        return [] if values.grad_fn is None else [values.grad_fn]
    if isinstance(values, Mapping):
        values = list(values.values())
    return [node for value in values for node in _nodes(value)] if isinstance(values, (list, tuple)) else []


def _mark(results: list[Any], inputs: list[Any], path: str) -> None:
    """Note a module's path in the nodes between its inputs and results, except in nodes that inner modules marked before."""
    visited, waiting = list(inputs), list(results)
    visited_ids = set(map(id, visited))  # stable, since `visited` keeps the nodes alive
    while waiting:
        node = waiting.pop()
        if id(node) in visited_ids:
            continue
        visited_ids.add(id(node))
        visited.append(node)
        waiting += [before for before, _ in node.next_functions if before is not None]
        if node.next_functions and _MARK not in node.metadata:  # nodes that only accumulate gradients have no next functions
            node.metadata[_MARK] = path
            enter, leave = _backward_hooks(path)
            node.register_prehook(enter)
            node.register_hook(leave)


def _backward_hooks(path: str) -> tuple[Callable[..., None], Callable[..., None]]:
    def leave(*gradients: Any) -> None:
        scope, _open.backward = _open.backward, None
        if scope is not None:
            scope.__exit__(None, None, None)

    def enter(*gradients: Any) -> None:
        leave()  # closes the scope of a node that failed
        _open.backward = metrics.scope(path)
        _open.backward.__enter__()

    return enter, leave

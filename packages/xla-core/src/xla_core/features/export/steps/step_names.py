"""Names of the state of a captured step, by where its Python finds it: `model.0.weight`, `optimizer.state.0.exp_avg`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tracing.numbers import Symbol
from xla_core.engine.tracing.origins import Gradient, Source, State
from xla_core.features.captured.python_state import PythonState, contents
from xla_core.features.captured.recording import Recorded


class Names:
    """Names that are given once, for what several programs of a function share.

    storages, gradients: what has them, gradients by their parameters; numbers: with their values.
    """

    def __init__(self) -> None:
        self.storages: dict[str, Storage] = {}
        self.gradients: dict[str, torch.Tensor] = {}
        self.numbers: dict[str, float] = {}
        self._known: dict[int, str] = {}  # by id of a storage, of a tensor that has a gradient, or of a count
        self._taken: set[str] = set()

    def _give(self, key: int, name: str) -> str:
        """The name of the object with this id: `name`, if nothing else has that."""
        found = self._known.get(key)
        if found is None:
            found = next(each for each in _variants(name) if each not in self._taken)
            self._taken.add(found)
            self._known[key] = found
        return found

    def of_program(self, recorded: Recorded) -> ProgramNames:
        """The names of one program's state."""
        return ProgramNames(self, recorded)


class ProgramNames:
    """The names in one captured program."""

    def __init__(self, names: Names, recorded: Recorded) -> None:
        self._names, self._recorded = names, recorded
        self._suggested = {id(storage): name for storage, name in _of_storages(recorded.state)}
        self._optimizers = dict(_of_optimizers(recorded.state))

    def of_state(self, source: Source) -> str:
        """The name of state: of a tensor, or of the gradient of one."""
        names = self._names
        if isinstance(source, State):
            name = names._give(id(source.storage), self._suggested.get(id(source.storage), "tensor"))
            names.storages[name] = source.storage
            return name
        if not isinstance(source, Gradient):
            raise TypeError(f"{source} is no state")
        tensor = self._recorded.leaves[source.index].tensor
        found = tensor_behind(tensor)
        of = "tensor" if found is None else names._known.get(id(found._storage)) or self._suggested.get(id(found._storage), "tensor")
        name = names._give(id(tensor), f"{of}.grad")
        names.gradients[name] = tensor
        return name

    def hyperparameter(self, symbol: Symbol, value: float) -> str:
        """Of a float in an optimizer's group."""
        owner, number, name, place = symbol.key
        optimizer = next(stepped.optimizer for stepped in self._recorded.stepped if id(stepped.optimizer) == owner)
        several = f".{place}" if isinstance(optimizer.param_groups[number][name], (tuple, list)) else ""
        full = f"{self._optimizers[owner]}.param_groups.{number}.{name}{several}"
        self._names.numbers[full] = value
        return full

    def count(self, tensor: torch.Tensor, value: float) -> str:
        """Of a step count on the CPU."""
        for stepped in self._recorded.stepped:
            for key, state in _indexed(stepped.optimizer):
                if state is tensor:
                    full = f"{self._optimizers[id(stepped.optimizer)]}.{key}"
                    self._names.numbers[full] = value
                    return full
        raise KeyError("a count that no optimizer has")


def _variants(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}~{number}"
        number += 1


def _of_optimizers(state: PythonState) -> Iterator[tuple[int, str]]:
    """The ids of optimizers, with their names, no two of which are alike."""
    taken: set[str] = set()
    for optimizer in state.optimizers:
        place = next(place for place in state.places if place[0] is optimizer.__dict__ and place[1] == "param_groups")
        name = next(each for each in _variants(_clean(state.names[id(place)]).removesuffix(".param_groups")) if each not in taken)
        taken.add(name)
        yield id(optimizer), name


def _of_storages(state: PythonState) -> list[tuple[Storage, str]]:
    """Storages with names, the better ones last: of a tensor that shows all of it before those of views."""
    found = [(tensor_behind(value), name) for value, name in _tensors(state)]
    ours = [(tensor, name) for tensor, name in found if tensor is not None]
    ordered = [pair for pair in ours if pair[0]._view is not None] + [pair for pair in reversed(ours) if pair[0]._view is None]
    return [(tensor._storage, name) for tensor, name in ordered]


def _tensors(state: PythonState) -> Iterator[tuple[torch.Tensor, str]]:
    """Tensors with names: those of modules first, then of optimizers, of variables and attributes, and of what is in lists and dicts."""
    modules = [each for each in state.dicts if state.names[id(each)].endswith(("._parameters", "._buffers", ")"))]
    yield from _of_dicts(state, modules)
    names = dict(_of_optimizers(state))
    for optimizer in state.optimizers:
        for key, value in _indexed(optimizer):
            yield value, f"{names[id(optimizer)]}.{key}"
    for place in state.places:
        held: Any = place[0].get(place[1])
        if isinstance(held, torch.Tensor):
            yield held, _clean(state.names[id(place)])
        elif type(held) is tuple:
            for number, item in enumerate(held):
                if isinstance(item, torch.Tensor):
                    yield item, _clean(f"{state.names[id(place)]}.{number}")
    for cell in state.cells:
        content: Any = contents(cell)
        if isinstance(content, torch.Tensor):
            yield content, _clean(state.names[id(cell)])
    inside = {id(each) for each in modules}
    yield from _of_dicts(state, [each for each in state.dicts if id(each) not in inside])
    for items in state.lists:
        for number, item in enumerate(items):
            if isinstance(item, torch.Tensor):
                yield item, _clean(f"{state.names[id(items)]}.{number}")


def _of_dicts(state: PythonState, dicts: list[dict[Any, Any]]) -> Iterator[tuple[torch.Tensor, str]]:
    for container in dicts:
        for key, value in container.items():
            if isinstance(value, torch.Tensor):
                yield value, _clean(f"{state.names[id(container)]}.{key}")


def _indexed(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of an optimizer, by the names that they have in its `state_dict`."""
    parameters: list[Any] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(parameters):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                yield f"state.{number}.{key}", value
    for number, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                yield f"param_groups.{number}.{key}", value


def _clean(name: str) -> str:
    """A name as a state dict would have it: `model._modules['0'] (Linear)` is `model.0`, `caches[2]` is `caches.2`."""
    name = re.sub(r" \(\w+\)", "", name)
    name = name.replace(".__self__", "").replace("._modules[", "[")
    name = re.sub(
        r"\[(?:'([^']*)'|\"([^\"]*)\"|(-?\d+))\]", lambda found: f".{next(group for group in found.groups() if group is not None)}", name
    )
    return re.sub(r"\._(?:parameters|buffers|modules)(?=\.)", "", name)

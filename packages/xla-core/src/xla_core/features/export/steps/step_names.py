"""Names the state of a captured step by where its Python finds it: `model.0.weight`, `optimizer.state.0.exp_avg`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tracing.numbers import Symbol
from xla_core.engine.tracing.origins import Gradient, Source, State
from xla_core.features.captured.hooks import MEMBERS
from xla_core.features.captured.objects import Objects
from xla_core.features.captured.places import ListItem
from xla_core.features.captured.recorded import Recorded


class Names:
    """Names for the state that the programs of a function share.

    storages: named storages; gradients: parameters, by the names of their gradients; numbers: values by name.
    """

    def __init__(self) -> None:
        self.storages: dict[str, Storage] = {}
        self.gradients: dict[str, torch.Tensor] = {}
        self.numbers: dict[str, float] = {}
        self._by_id: dict[int, str] = {}  # names, by id of a storage or a tensor with a gradient
        self._taken: set[str] = set()

    def _give(self, key: int, name: str) -> str:
        """The name of the object with this id: `name`, unless another object has it."""
        given_name = self._by_id.get(key)
        if given_name is None:
            given_name = next(variant for variant in _variants(name) if variant not in self._taken)
            self._taken.add(given_name)
            self._by_id[key] = given_name
        return given_name

    def of_program(self, recorded: Recorded) -> ProgramNames:
        """Make the names of one program's state."""
        return ProgramNames(self, recorded)


class ProgramNames:
    """Names in one captured program."""

    def __init__(self, names: Names, recorded: Recorded) -> None:
        self._names, self._recorded = names, recorded
        objects = recorded.objects
        if objects is None:
            raise ValueError("a verified call has no names")
        self._suggested = {id(storage): name for storage, name in _of_storages(objects)}
        self._optimizers = dict(_of_optimizers(objects))

    def of_state(self, source: Source) -> str:
        """The name of a tensor or a gradient."""
        names = self._names
        if isinstance(source, State):
            name = names._give(id(source.storage), self._suggested.get(id(source.storage), "tensor"))
            names.storages[name] = source.storage
            return name
        if not isinstance(source, Gradient):
            raise TypeError(f"{source} is no state")
        tensor = self._recorded.leaves[source.index].tensor
        xla_tensor = tensor_behind(tensor)
        of = (
            "tensor"
            if xla_tensor is None
            else names._by_id.get(id(xla_tensor._storage)) or self._suggested.get(id(xla_tensor._storage), "tensor")
        )
        name = names._give(id(tensor), f"{of}.grad")
        names.gradients[name] = tensor
        return name

    def hyperparameter(self, symbol: Symbol, value: float) -> str:
        """The name of a float in an optimizer's group, whose value is noted."""
        owner, index, name, position = symbol.key
        optimizer = next(stepped.optimizer for stepped in self._recorded.stepped if id(stepped.optimizer) == owner)
        several = f".{position}" if isinstance(optimizer.param_groups[index][name], (tuple, list)) else ""
        full = f"{self._optimizers[owner]}.param_groups.{index}.{name}{several}"
        self._names.numbers[full] = value
        return full

    def count(self, tensor: torch.Tensor, value: float) -> str:
        """The name of a step count on the CPU, whose value is noted."""
        for stepped in self._recorded.stepped:
            for key, state in _indexed(stepped.optimizer):
                if state is tensor:
                    full = f"{self._optimizers[id(stepped.optimizer)]}.{key}"
                    self._names.numbers[full] = value
                    return full
        raise KeyError("a count that no optimizer has")


def _variants(name: str) -> Iterator[str]:
    yield name
    index = 2
    while True:
        yield f"{name}~{index}"
        index += 1


def _of_optimizers(objects: Objects) -> Iterator[tuple[int, str]]:
    """The ids of optimizers with their names, which are all different."""
    taken: set[str] = set()
    for optimizer, label in objects.optimizers:
        name = next(variant for variant in _variants(_clean(label)) if variant not in taken)
        taken.add(name)
        yield id(optimizer), name


def _of_storages(objects: Objects) -> list[tuple[Storage, str]]:
    """Storages with names, better names last: views come first, then tensors that show the whole storage."""
    tensors = [(tensor_behind(value), name) for value, name in _tensors(objects)]
    ours = [(tensor, name) for tensor, name in tensors if tensor is not None]
    ordered = [pair for pair in ours if pair[0]._view is not None] + [pair for pair in reversed(ours) if pair[0]._view is None]
    return [(tensor._storage, name) for tensor, name in ordered]


def _tensors(objects: Objects) -> Iterator[tuple[torch.Tensor, str]]:
    """Tensors with names: first those of modules, then of optimizers, of variables and attributes, and of lists and dicts."""
    for module, label in objects.modules:
        for key in MEMBERS:
            for name, value in getattr(module, key).items():
                if isinstance(value, torch.Tensor):
                    yield value, _clean(f"{label}.{name}")
    names = dict(_of_optimizers(objects))
    for optimizer, _ in objects.optimizers:
        for key, value in _indexed(optimizer):
            yield value, f"{names[id(optimizer)]}.{key}"
    for read in sorted(objects.reads.values(), key=lambda each: isinstance(each.place, ListItem)):
        stored: Any = read.place.get()
        if isinstance(stored, torch.Tensor):
            yield stored, _clean(read.name)
        elif type(stored) is tuple:
            for index, item in enumerate(stored):
                if isinstance(item, torch.Tensor):
                    yield item, _clean(f"{read.name}.{index}")


def _indexed(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of an optimizer, by their names in its `state_dict`."""
    parameters: list[Any] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, parameter in enumerate(parameters):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                yield f"state.{index}.{key}", value
    for index, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                yield f"param_groups.{index}.{key}", value


def _clean(name: str) -> str:
    """A name in the style of state dicts: `model._modules['0'] (Linear)` becomes `model.0`, `caches[2]` becomes `caches.2`."""
    name = re.sub(r" \(\w+\)", "", name)
    name = name.replace(".__self__", "").replace("._modules[", "[")
    name = re.sub(
        r"\[(?:'([^']*)'|\"([^\"]*)\"|(-?\d+))\]", lambda match: f".{next(group for group in match.groups() if group is not None)}", name
    )
    return re.sub(r"\._(?:parameters|buffers|modules)(?=\.)", "", name)

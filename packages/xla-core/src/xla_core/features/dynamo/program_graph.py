"""A pending graph that becomes one program. It handles saved random states, and CPU tensors whose values are read at each call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from xla_core.base.errors import GraphBreakError
from xla_core.base.private_torch import make_wrapper, tree_map
from xla_core.engine.graph.entries import SEED, ScalarInput
from xla_core.engine.graph.pending_graph import PendingGraph
from xla_core.engine.tensor.tensor import XLATensor


@dataclass(frozen=True, slots=True)
class ArgumentNumber:
    """The number in argument `place`, a 0-dim CPU tensor."""

    place: int


class HostTensor(torch.Tensor):
    """Stands for a CPU tensor whose values may differ at each call. Computing with it on the CPU gives such a tensor again.

    place: index of the argument; None for a computed tensor.
    """

    place: int | None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if any(issubclass(tensor_type, XLATensor) for tensor_type in types):
            return NotImplemented
        real_args, real_kwargs = tree_map(_ones, (args, kwargs or {}))
        return tree_map(_hidden, func(*real_args, **real_kwargs))


def host_tensor(like: torch.Tensor, place: int | None = None) -> HostTensor:
    """Make a stand-in with the shape and dtype of a CPU tensor."""
    cpu = torch.device("cpu")
    stand_in: HostTensor = make_wrapper(HostTensor, tuple(like.shape), None, None, None, like.dtype, torch.strided, cpu)
    stand_in.place = place
    return stand_in


def _ones(item: Any) -> Any:
    return torch.ones(item.shape, dtype=item.dtype, device="cpu") if type(item) is HostTensor else item


def _hidden(item: Any) -> Any:
    if item is None or (isinstance(item, torch.Tensor) and item.device.type == "meta"):  # torch asks for a shape
        return item
    if not isinstance(item, torch.Tensor) or item.device.type != "cpu":
        raise GraphBreakError("a tensor on the CPU is read, or moved to the device")
    return host_tensor(item)


class ProgramGraph(PendingGraph):
    """A pending graph without a limit, also in eager mode.

    given: slot of the random state for the next random operation; None if it draws one.
    """

    __slots__ = ("given",)

    def __init__(self) -> None:
        super().__init__()
        self.given: int | None = None

    def host_number(self, tensor: Any) -> Any:
        """The number of a stand-in, None for other tensors. Raises GraphBreakError for a stand-in that is not one number of an argument."""
        if type(tensor) is not HostTensor:
            return None
        if tensor.place is None or tensor.dim() or tensor.dtype.is_complex or tensor.dtype is torch.uint64:
            raise GraphBreakError("a tensor on the CPU is used on the device")
        return ArgumentNumber(tensor.place)

    def add_scalar(self, kind: ScalarInput, number: Any) -> int:
        """Add a scalar input, or use the given random state instead of a new one."""
        if kind is not SEED or self.given is None:
            return super().add_scalar(kind, number)
        slot, self.given = self.given, None
        return slot

    def repeat(self, state: XLATensor, run: Callable[[], Any]) -> Any:
        """Call `run`, which records one random operation, with `state` as its random state."""
        drawn = self.entries.count(SEED)
        self.given = self.adopt(state._storage.value)
        try:
            result = run()
        finally:
            self.given = None
        if self.entries.count(SEED) != drawn:
            raise GraphBreakError("an operation of a checkpoint draws random numbers more than once")
        return result

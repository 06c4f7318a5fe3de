"""One forward pass of a wrapper: it drops the whole parameters at its end and gathers them again before backward needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from xla_core.abi.tensors import tensor_behind
from xla_core.abi.views import storage_key, view_function
from xla_distributed._compat import after_backward, in_backward
from xla_distributed.fsdp.unit import FsdpUnit


@dataclass(frozen=True, slots=True)
class _SavedParameter:
    """What autograd saves of a whole parameter: the parameter's index in its unit, and the view of it."""

    number: int
    view: Callable[[torch.Tensor], torch.Tensor]


class ForwardPass:
    """A forward pass, and the backward passes that follow it.

    keeps: let autograd keep the whole parameters. separate: gather again only when the gradient of the output is there. previous: the
    pass before, whose parameters are gathered together with those of this one in backward: so they are there when their turn comes, and
    the gradients of this one may travel meanwhile, which collectives in line would not allow.
    shown, hidden: called when modules are about to find whole parameters, and when they no longer do; ended: called after backward.
    """

    def __init__(
        self,
        unit: FsdpUnit,
        keeps: bool,
        separate: bool,
        previous: ForwardPass | None,
        shown: Callable[[], None],
        hidden: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._unit = unit
        self._keeps = keeps
        self._separate = separate
        self._previous = previous
        self._shown = shown
        self._hidden = hidden
        self._ended = ended
        self._regathered: list[torch.Tensor] | None = None
        self._gathered_ahead: list[torch.Tensor] | None = None

    @contextmanager
    def parameters(self, ties: Sequence[torch.Tensor]) -> Iterator[None]:
        """Inside, modules find whole parameters, which autograd does not keep, unless `keeps`. ties: as of `FsdpUnit.gathered`."""
        whole = self._unit.gathered(ties)
        index_by_storage = {storage_key(tensor): index for index, tensor in enumerate(whole)}

        def pack(tensor: torch.Tensor) -> Any:
            index = index_by_storage.get(storage_key(tensor)) if tensor_behind(tensor) is not None else None
            return tensor if index is None else _SavedParameter(index, view_function(tensor))

        def unpack(packed: Any) -> torch.Tensor:
            return packed.view(self._regather(())[packed.number]) if isinstance(packed, _SavedParameter) else packed

        self._unit.show(whole)
        try:
            self._shown()
            if self._keeps:
                self._gathered_ahead = whole
                yield
            else:
                with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                    yield
        finally:
            self._unit.hide()
            self._hidden()

    def before_backward(self, gradient: torch.Tensor) -> None:
        """Gather whole parameters again: a hook of the output's gradients."""
        ties = [gradient] if self._separate else []
        self._regather(ties)
        if self._previous is not None:
            self._previous._gather_ahead(ties)

    def _gather_ahead(self, ties: Sequence[torch.Tensor]) -> None:
        if self._gathered_ahead is None and self._regathered is None:
            with torch.enable_grad():
                self._gathered_ahead = self._unit.gathered(ties)

    def _regather(self, ties: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The whole parameters, which modules find until backward is over, since checkpoints call them."""
        if self._regathered is not None:
            return self._regathered
        self._gather_ahead(ties)
        whole, self._gathered_ahead = self._gathered_ahead or [], self._gathered_ahead if self._keeps else None
        if in_backward():
            self._regathered = whole
            self._unit.show(whole)
            with torch.enable_grad():  # what is shown may be views
                self._shown()
            after_backward(self._end)
        return whole

    def _end(self) -> None:
        self._regathered = None
        if self._previous is not None and not self._previous._keeps:
            self._previous._gathered_ahead = None  # its outputs had no gradients
        self._unit.hide()
        self._hidden()
        self._ended()

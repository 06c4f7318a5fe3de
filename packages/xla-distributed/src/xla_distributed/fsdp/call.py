"""One forward pass of a wrapper: its whole parameters go after it, and come again before backward needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from xla_core.abi.tensors import tensor_behind
from xla_core.abi.views import storage_key, view_function
from xla_distributed._compat import after_backward, in_backward
from xla_distributed.fsdp.unit import Unit


@dataclass(frozen=True, slots=True)
class _Saved:
    """What autograd keeps of a whole parameter: which, and the view of it."""

    number: int
    view: Callable[[torch.Tensor], torch.Tensor]


class Call:
    """A forward pass, and the backward passes that follow it.

    keeps: let autograd keep the whole parameters. separate: gather again only when the gradient of the output is there. previous: the
    pass before, whose parameters are gathered together with those of this one in backward: so they are there when their turn comes, and
    the gradients of this one may travel meanwhile, which collectives in line would not allow.
    shown, hidden: called when modules are about to find whole parameters, and when they no longer do; ended: called after backward.
    """

    def __init__(
        self,
        unit: Unit,
        keeps: bool,
        separate: bool,
        previous: Call | None,
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
        self._again: list[torch.Tensor] | None = None
        self._ahead: list[torch.Tensor] | None = None

    @contextmanager
    def parameters(self, ties: Sequence[torch.Tensor]) -> Iterator[None]:
        """Inside, modules find whole parameters, which autograd does not keep, unless `keeps`. ties: as of `Unit.gathered`."""
        whole = self._unit.gathered(ties)
        numbers = {storage_key(tensor): number for number, tensor in enumerate(whole)}

        def pack(tensor: torch.Tensor) -> Any:
            number = numbers.get(storage_key(tensor)) if tensor_behind(tensor) is not None else None
            return tensor if number is None else _Saved(number, view_function(tensor))

        def unpack(packed: Any) -> torch.Tensor:
            return packed.view(self._whole_again(())[packed.number]) if isinstance(packed, _Saved) else packed

        self._unit.show(whole)
        try:
            self._shown()
            if self._keeps:
                self._ahead = whole
                yield
            else:
                with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                    yield
        finally:
            self._unit.hide()
            self._hidden()

    def before_backward(self, gradient: torch.Tensor) -> None:
        """A hook of outputs."""
        ties = [gradient] if self._separate else []
        self._whole_again(ties)
        if self._previous is not None:
            self._previous._gather_ahead(ties)

    def _gather_ahead(self, ties: Sequence[torch.Tensor]) -> None:
        if self._ahead is None and self._again is None:
            with torch.enable_grad():
                self._ahead = self._unit.gathered(ties)

    def _whole_again(self, ties: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The whole parameters, which modules find until backward is over, since checkpoints call them."""
        if self._again is not None:
            return self._again
        self._gather_ahead(ties)
        whole, self._ahead = self._ahead or [], self._ahead if self._keeps else None
        if in_backward():
            self._again = whole
            self._unit.show(whole)
            with torch.enable_grad():  # what is shown may be views
                self._shown()
            after_backward(self._end)
        return whole

    def _end(self) -> None:
        self._again = None
        if self._previous is not None and not self._previous._keeps:
            self._previous._ahead = None  # its outputs had no gradients
        self._unit.hide()
        self._hidden()
        self._ended()

"""A program as passes and listeners see it: operations, their arguments and results, and their users.

Passes, wrappers of executables and listeners get a `GraphView`. The encoding of a program is private to the engine (graph.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch


class Operation(NamedTuple):
    """A recorded operation. name: the overload, such as `aten.add.Tensor`; text: the same in every process; line: the user's.

    slot: where it stands in the program; operands: the slots it takes. target: the functional form that lowers it, as `register_op` and
    the edits of graphs name it (`aten::add.Tensor`, also where `add_` was called); empty for those without one, such as reads of views.
    """

    name: str
    text: str
    line: str | None
    slot: int
    operands: tuple[int, ...]
    target: str = ""


@dataclass(frozen=True, slots=True)
class Operand:
    """A value in a program: an input, a result of an operation, or a number that enters with the program.

    shape, dtype: None for a Python number. text: both, such as `f32[32,784]`. nbytes: on the device.
    """

    slot: int
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    text: str
    nbytes: int


class GraphView(Protocol):
    """A recorded program. It never changes: an edit makes a new program."""

    @property
    def outs(self) -> tuple[int, ...]:
        """The slots of its results."""

    @property
    def dead(self) -> tuple[int, ...]:
        """The indices of the inputs whose buffers nobody else holds."""

    def operations(self) -> Iterator[Operation]:
        """The recorded operations, in order."""

    def inputs(self) -> Iterator[Operand]:
        """The buffers it takes, in order."""

    def results(self) -> Iterator[Operation | None]:
        """The operation that computes each result, in order; None for an input that is returned as it is."""

    def operand(self, slot: int) -> Operand:
        """The value at a slot."""

    def arguments(self, operation: Operation) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of an operation, positional and by name, as the schema of its `target` has them: operands and constants."""

    def results_of(self, operation: Operation) -> tuple[Operand, ...]:
        """The values that an operation computes."""

    def users(self, *operands: Operand) -> list[Operation]:
        """The operations that take any of these values, in order."""

    def maker(self, operand: Operand) -> Operation | None:
        """The operation that computes a value; None for an input or a number."""

    def numbers(self) -> list[int]:
        """The slots of the Python numbers that it was compiled with, floats before integers, as `CompileEvent.constants` has them."""

"""Records a call of a function while it runs as always, and collects what is needed to repeat it without its Python."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from xla_core.engine.graph import rng
from xla_core.engine.tensor.plain import ours, tensor_behind
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import view_of
from xla_core.engine.tracing.numbers import Number, Symbol
from xla_core.engine.tracing.origins import Constant
from xla_core.features.captured.arguments import Arguments, modes
from xla_core.features.captured.constants import Constants
from xla_core.features.captured.places import Within, own_items, same
from xla_core.features.captured.reads import Reads
from xla_core.features.captured.recorded import GradientLeaf, Recorded
from xla_core.features.captured.results import replaced, with_true_numbers
from xla_core.features.captured.tape import Run, Tape
from xla_core.features.captured.writes import Write, undone, writes

_MOST_STEPS = 4


@dataclass(slots=True, eq=False)
class Met:
    """A tensor that was there before the call, as the call met it: what it showed, whether it required a gradient (`wanted`), and the "
    "gradient that it had."""

    reference: weakref.ref[torch.Tensor]
    storage: Storage
    view: Any
    wanted: bool
    grad: weakref.ref[torch.Tensor] | None = None
    grad_storage: Storage | None = None


class CallRecording:
    """Follows a call from before its first operation to after its sync.

    number: of the call; arguments: with the values of places (`passed` has their names), whose numbers have `symbols`. reads: what follows
    the Python; None if the call is to be compared with `captured`. leaves: of an earlier call.
    """

    def __init__(
        self,
        tape: Tape,
        number: int,
        arguments: Arguments,
        passed: list[str],
        symbols: list[Symbol],
        leaves: list[GradientLeaf],
        captured: Recorded | None,
        constants: Constants,
    ) -> None:
        self.tape = tape
        self.number = number
        self.arguments = arguments
        self.passed = passed
        self.symbols = symbols
        self.reads: Reads | None = None
        self.captured = captured
        self.constants = constants
        self.problems = tape.problems
        self.has_graph = False  # whether a result has a graph that somebody may go backward through
        self._seed = tape.recorder.seed
        self._within = [Within(container, index) for index, container in enumerate(arguments.containers)]
        self._contents = [place.get() for place in self._within]
        self._attributes = [dict(tensor.__dict__) for tensor in arguments.tensors]
        self._modes = modes()
        self.met: dict[int, Met] = {}
        for tensor in (*arguments.tensors, *[leaf.tensor for leaf in leaves]):
            self.meet(tensor)
        tape.on_tensor = self.meet
        for storage in arguments.storages:
            tape.touch(storage)

    def meet(self, tensor: torch.Tensor) -> None:
        """Note a tensor before the call does something with it."""
        behind = tensor_behind(tensor)
        if behind is None or id(tensor) in self.met or self.tape.was_made(tensor) or self.tape.born(behind._storage):
            return
        met = self.met[id(tensor)] = Met(weakref.ref(tensor), behind._storage, behind._view, tensor.requires_grad)
        if tensor.is_leaf and tensor.grad is not None:
            met.grad = weakref.ref(tensor.grad)
            met.grad_storage = ours(tensor.grad)._storage
            self.tape.touch(met.grad_storage)

    def end(self) -> None:
        """Note what the call has left in Python, with traced numbers, and put the true ones there."""
        self.left: list[Write] = []
        self.tape.watch.restore()
        if self.reads is not None:
            self.reads.stop()
            self.problems += self.reads.problems
            for write in writes(self.reads, self.tape.watch.kept):
                if isinstance(write, str):
                    self.problems.append(write)
                else:
                    self.left.append(write)
        elif self.captured is not None:
            self.left = [Write(place, "", place.get(), None) for place in self.captured.places if not isinstance(place, Within)]
        if modes() != self._modes:
            self.problems.append(
                "it leaves another grad mode, default dtype or autocast than it found: set that before the call, or by `with`"
            )
        if not all(map(_equal_contents, self._attributes, [tensor.__dict__ for tensor in self.arguments.tensors])):
            self.problems.append("it sets attributes of a tensor that is an argument: return what it keeps there")
        for place, before in zip(self._within, self._contents, strict=True):
            after = place.get()
            if not _equal_contents(before, after):
                self.left.append(Write(place, f"the {type(place.owner).__name__} that is an argument", after, None))
        for known in () if self.reads is None else self.reads.objects.containers.values():
            _put_true_numbers(known.container)
        self.replace_left(true_number)

    def undone(self) -> bool:
        """Undo what the call has done, which ended by an error. Returns whether nothing is left of it."""
        grads = [(met.reference(), met.grad) for met in self.met.values()]
        given = any(
            tensor is not None and tensor.grad is not (None if grad is None else grad())
            for tensor, grad in grads
            if tensor is None or tensor.is_leaf
        )
        if self.reads is None or given or self.tape.has_written():
            return False
        self.tape.recorder.seed = self._seed
        return undone(self.reads, self.tape.watch.kept, lambda value: replaced(value, true_number))

    def replace_left(self, replace: Callable[[Any], Any]) -> None:
        """Replace leaves of what the call has left in Python."""
        for write in self.left:
            value = replaced(write.after, replace)
            if value is not write.after:
                write.place.put(value)

    def cleaned(self, outcome: Any, replace: Callable[[Any], Any]) -> Any:
        """The call's result with other leaves. What it has left gets them, too, and nothing keeps traced numbers."""
        self.replace_left(replace)
        result = replaced(outcome, replace)
        if not self.symbols:
            return result
        seen: set[int] = set()
        for write in self.left:
            value = write.place.get()
            true = with_true_numbers(value, seen)
            if true is not value:
                write.place.put(true)
        return with_true_numbers(result, seen)

    def leaves(self) -> list[torch.Tensor]:
        """The tensors that had or may have got gradients; of the arguments only those that have."""
        arguments = set(map(id, self.arguments.tensors))
        leaves = []
        for met in self.met.values():
            tensor = met.reference()
            if tensor is not None and tensor.is_leaf:
                wants = (tensor.requires_grad or met.wanted) and id(tensor) not in arguments
                if wants or met.grad is not None or tensor.grad is not None:
                    leaves.append(tensor)
        return leaves

    def required(self) -> list[tuple[int, bool]]:
        """The arguments whose `requires_grad` the call has changed, with what it is now."""
        arguments = enumerate(self.arguments.tensors)
        return [
            (index, tensor.requires_grad)
            for index, tensor in arguments
            if id(tensor) in self.met and self.met[id(tensor)].wanted is not tensor.requires_grad
        ]

    def changed(self) -> Iterator[str]:
        """What the call has changed of tensors that were there before, but for their data, as reasons not to capture it."""
        for met in self.met.values():
            tensor = met.reference()
            behind = None if tensor is None else tensor_behind(tensor)
            if tensor is None or behind is None or behind._storage is not met.storage:
                continue
            if behind._view is not met.view:
                yield (
                    f"it changes the shape of a tensor in place, to {tuple(tensor.shape)}: squeeze_(), t_() and the like would not happen "
                    "in "
                    "a captured call; make another tensor of it, with squeeze() or t()"
                )
            if tensor.is_leaf and tensor.requires_grad is not met.wanted and all(tensor is not each for each in self.arguments.tensors):
                yield (
                    f"it sets requires_grad of a tensor of shape {tuple(tensor.shape)}, which was there before the call, to "
                    f"{tensor.requires_grad}: do that before the call, or with a new tensor, such as x.detach().requires_grad_()"
                )

    def is_old(self, value: Any) -> bool:
        """Whether a returned object was there before the call."""
        if self.reads is not None:
            return self.reads.objects.is_known(value)
        constants = () if self.captured is None else self.captured.results
        return any(isinstance(item, Constant) and item.value is value for item in constants)

    def seeds(self, run: Run) -> tuple[list[int], int, int]:
        """Which random states the program takes, by their numbers in the order of drawing; how many were drawn; how many steps were made.

        A checkpointed function draws its states twice.
        """
        chain = [self._seed]
        for _ in run.inputs.seeds:
            chain.append(rng.moved_on(chain[-1]))
        if all(drawn in chain for drawn in run.inputs.seeds):
            for drawn, state in enumerate(chain):
                for steps in range(1, _MOST_STEPS):
                    state = rng.past_step(state)
                    if state == self.tape.recorder.seed:
                        return [chain.index(seed) for seed in run.inputs.seeds], drawn, steps
        self.problems.append(
            "it sets the random state, or draws random numbers from a generator of its own: leave that to the device's state, "
            "which torch.manual_seed sets before the call"
        )
        return [], 0, 0


def true_number(leaf: Any) -> Any:
    """The true number instead of a traced one; anything else as it is."""
    return leaf.true if isinstance(leaf, Number) else leaf


def _equal_contents(before: Any, after: Any) -> bool:
    """Whether a container has what it had."""
    if isinstance(before, dict):
        return list(before) == list(after) and all(map(same, after.values(), before.values()))
    return len(before) == len(after) and all(map(same, after, before))


def _put_true_numbers(container: Any) -> None:
    """Replace traced numbers that the call has added to a list, deque or set."""
    traced = [] if isinstance(container, dict) else [item for item in own_items(container) if isinstance(item, Number)]
    if isinstance(container, set):
        container.difference_update(traced)
        container.update([number.true for number in traced])
    elif traced:
        for index, item in enumerate(container):
            if isinstance(item, Number):
                container[index] = item.true


class NumberRefused(Exception):
    """A call ended by an error, maybe since C wants a whole number of Python's own, and got one that is followed. names: of numbers."""

    def __init__(self, error: TypeError, recording: CallRecording | None, names: list[str]) -> None:
        super().__init__()
        self.error = error
        self.recording = recording
        self.names = names


def without_graph(tape: Tape, leaf: Any) -> Any:
    """What a captured call gives instead of a traced number, or of a tensor whose graph the call has gone backward through."""
    leaf = true_number(leaf)
    if not isinstance(leaf, torch.Tensor) or not leaf.requires_grad or not tape.was_made(leaf):
        return leaf
    shown = tensor_behind(leaf)
    return leaf if shown is None else view_of(shown._storage, shown._view)

"""What the file of an exported step says of its programs: frozen values, and JSON that is checked when it is read."""

from __future__ import annotations

import dataclasses
import enum
import math
from dataclasses import dataclass
from typing import Any

from xla_core.base.errors import StepFileError
from xla_core.features.export import typed_json

VERSION = 1
"""Of the format. Readers refuse later ones."""
MOST_DRAWS = 1 << 20
"""Random operations of a program, and steps of the random state behind a call."""


class Kind(enum.StrEnum):
    """What a value is of."""

    STATE = "state"
    ARGUMENT = "argument"
    NUMBERS = "numbers"
    SEEDS = "seeds"
    RESULT = "result"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of the file, counted from the end of the description."""

    offset: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor: torch's name of its dtype, the dtype that stands for it on the device, by NumPy's name, and its sizes."""

    dtype: str
    stored: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class State:
    """A tensor that outlives calls, and its value when the step was exported."""

    tensor: Tensor
    value: Part


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of the arguments. A tensor: `same_as` is the number of the first tensor with the same data, its own if there is none.

    A constant: `value`, as `nesting.encode` gives it.
    """

    kind: Kind
    tensor: Tensor | None
    requires_grad: bool
    same_as: int
    value: Any


@dataclass(frozen=True, slots=True)
class Slot:
    """An input or an output of a program: a state tensor by `name`, tensor argument or result `number`, packed numbers, or seeds."""

    kind: Kind
    tensor: Tensor
    name: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Returned:
    """A leaf of what is returned: result `number` of the program, tensor argument `number`, or a constant `value`."""

    kind: Kind
    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class CountedNumbers:
    """Numbers that are equal, and what a call adds to them."""

    names: tuple[str, ...]
    advance: float


@dataclass(frozen=True, slots=True)
class Formulas:
    """How the numbers that a program takes follow from those that are kept.

    table: rows of ["number", name], ["constant", value], or [function, *earlier rows], as `formulas.FUNCTIONS` names functions.
    inputs: the rows that the program takes, as one vector of float64. conditions: rows, and what they must be.
    """

    table: tuple[Any, ...]
    inputs: tuple[int, ...]
    conditions: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A program for one kind of arguments. code: a portable artifact of StableHLO, whose function `main` takes and gives tensors, flat.

    arguments, returned: nestings with the numbers of leaves; donated: inputs that outputs take over. A call moves the random state past
    one step, draws `draws` seeds, and moves it past `steps` more.
    """

    code: Part
    platforms: tuple[str, ...]
    arguments: Any
    leaves: tuple[Leaf, ...]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    donated: tuple[int, ...]
    returned: Any
    results: tuple[Returned, ...]
    formulas: Formulas
    counts: tuple[CountedNumbers, ...]
    draws: int
    steps: int


@dataclass(frozen=True, slots=True)
class Description:
    """A whole file. numbers: hyperparameters and step counts; stablehlo: its version; writer: versions of what wrote it, for people."""

    format_version: int
    name: str
    stablehlo: str
    writer: dict[str, str]
    state: dict[str, State]
    numbers: dict[str, float]
    random_state: int
    programs: tuple[Program, ...]


def as_json(description: Description) -> dict[str, Any]:
    """The description as what `json.dumps` takes."""
    return dataclasses.asdict(description)


def from_json(data: Any) -> Description:
    """The description that `as_json` has written. Raises StepFileError for anything else, and for a newer version."""
    version = data.get("format_version") if isinstance(data, dict) else None
    if type(version) is not int or version < 1:
        raise StepFileError(f"its description has the format version {version!r}: it is no exported step")
    if version > VERSION:
        raise StepFileError(f"it has version {version} of the format, this xla-core reads up to {VERSION}: upgrade xla-core")
    try:
        description: Description = typed_json.read(Description, data, "description")
    except ValueError as error:
        raise StepFileError(str(error)) from None
    for index, program in enumerate(description.programs):
        _check(description, program, f"programs[{index}]")
    return description


def _check(description: Description, program: Program, where: str) -> None:
    """Raise StepFileError for places that do not exist."""
    arguments = [leaf.tensor for leaf in program.leaves if leaf.kind is Kind.ARGUMENT]
    tensors = len(arguments)
    results = sum(slot.kind is Kind.RESULT for slot in program.outputs)
    if [slot.number for slot in program.outputs[:results]] != list(range(results)):
        raise StepFileError(f"{where}.outputs has results that are not numbered, or not first")
    for slots, name in ((program.inputs, "inputs"), (program.outputs, "outputs")):
        for slot in slots:
            wrong = slot.kind is Kind.STATE and (slot.name not in description.state or description.state[slot.name].tensor != slot.tensor)
            wrong = wrong or (slot.kind is Kind.ARGUMENT and slot.tensor not in arguments[slot.number : slot.number + 1])
            if wrong or (slot.kind is Kind.RESULT and slot.number >= results):
                raise StepFileError(f"{where}.{name} names {slot}, which is not there")
    for leaf in program.leaves:
        if (leaf.kind is Kind.ARGUMENT) is not (leaf.tensor is not None) or leaf.same_as > tensors:
            raise StepFileError(f"{where}.leaves has {leaf}, which is neither a tensor nor a constant")
    for result in program.results:
        if result.number >= {Kind.RESULT: results, Kind.ARGUMENT: tensors}.get(result.kind, math.inf):
            raise StepFileError(f"{where}.results names {result}, which is not there")
    if program.draws > MOST_DRAWS or program.steps > MOST_DRAWS:
        raise StepFileError(f"{where} has {program.draws} draws and {program.steps} steps of the random state, of {MOST_DRAWS} at most")
    if any(index >= len(program.inputs) for index in program.donated):
        raise StepFileError(f"{where}.donated has {program.donated}, of {len(program.inputs)} inputs")
    unknown = [name for count in program.counts for name in count.names if name not in description.numbers]
    if unknown or not all(count.names for count in program.counts):
        raise StepFileError(f"{where}.counts names {unknown}, which are not among the numbers")

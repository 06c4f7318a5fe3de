"""The description in an exported step's file: dataclasses, and JSON that is checked when it is read."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

from xla_core.base.errors import StepFileError
from xla_core.features.export import typed_json
from xla_core.features.export.steps.step_file import Format, Part

VERSION = 2
"""Version of the format. Readers refuse later versions. A file whose state has values is written as version 1, which older readers know."""
MOST_DRAWS = 1 << 20
"""Most random operations of a program, and most steps of the random state after a call."""


class Kind(enum.StrEnum):
    """What kind of value an input, output or leaf is."""

    STATE = "state"
    ARGUMENT = "argument"
    NUMBERS = "numbers"
    SEEDS = "seeds"
    RESULT = "result"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's form. dtype: torch's name; stored: NumPy's name of the dtype on the device; shape: sizes."""

    dtype: str
    stored: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state tensor, which lives across calls, and its value when the step was exported; None: it had none, on a target's devices."""

    tensor: Tensor
    value: Part | None


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of the arguments: a tensor or a constant.

    same_as: index of the first tensor argument with the same data. value: of a constant, as `nesting.encode` writes it.
    """

    kind: Kind
    tensor: Tensor | None
    requires_grad: bool
    same_as: int
    value: Any


@dataclass(frozen=True, slots=True)
class Slot:
    """An input or output of a program: a state tensor `name`, tensor argument or result `number`, packed numbers, or seeds."""

    kind: Kind
    tensor: Tensor
    name: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Returned:
    """A leaf of the returned nesting: result `number` of the program, tensor argument `number`, or a constant `value`."""

    kind: Kind
    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class CountedNumbers:
    """Equal numbers, and what a call adds to them."""

    names: tuple[str, ...]
    advance: float


@dataclass(frozen=True, slots=True)
class StoredFormulas:
    """How to compute a program's numbers from hyperparameters and step counts.

    table: rows of ["number", name], ["constant", value], or [function, *earlier rows], as `formulas.FUNCTIONS` names functions.
    inputs: the rows that the program takes, as one float64 vector. conditions: rows, and the values that they must have.
    """

    table: tuple[Any, ...]
    inputs: tuple[int, ...]
    conditions: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """A program for one kind of arguments. code: a portable StableHLO artifact, whose function `main` takes and returns flat tensors.

    arguments, returned: nestings with indices of leaves; donated: inputs that outputs take over. A call moves the random state past one
    step, draws `draws` seeds, and moves it past `steps` more steps.
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
    formulas: StoredFormulas
    counts: tuple[CountedNumbers, ...]
    draws: int
    steps: int


@dataclass(frozen=True, slots=True)
class Description:
    """Describes a file. numbers: hyperparameters and step counts; stablehlo: its version; writer: versions of the writer, for people.

    compiled_for: the target that a file of executables beside this one is for (step_executables.py); empty if there is none.
    """

    format_version: int
    name: str
    stablehlo: str
    writer: dict[str, str]
    state: dict[str, StoredState]
    numbers: dict[str, float]
    random_state: int
    programs: tuple[StoredProgram, ...]
    compiled_for: str = ""


def _from_json(data: Any) -> Description:
    """Read a description. Raises StepFileError for other data, and for a newer version."""
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


def _check(description: Description, program: StoredProgram, where: str) -> None:
    """Raise StepFileError for a program that refers to missing arguments, results, state or numbers."""
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


def _parts(description: Description) -> list[Part]:
    values = [state.value for state in description.state.values() if state.value is not None]
    return values + [program.code for program in description.programs]


STEP = Format(b"XLA_STEP", "exported step", _from_json, _parts)
"""The file that `export_step` writes."""

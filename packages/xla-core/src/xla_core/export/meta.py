"""The signature of an exported function, and the JSON of a `.meta` file that holds it.

A meta without `format_version` is of the first form, which knows neither what a function writes, nor numbers among arguments and results,
nor seeds.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from xla_core._compat import TreeSpec, treespec_dumps

FORMAT_VERSION = 2
"""Of metas: what this release reads, and writes where a function needs it."""

Number = int | float | bool | str | None  # an argument or a result that is no tensor


class VariableType(enum.Enum):
    """The kinds of inputs of a function."""

    INPUT_ARG = "input_arg"
    PARAMETER = "parameter"
    CONSTANT = "constant"
    SEEDS = "seeds"


@dataclass(frozen=True, slots=True)
class VariableSignature:
    """Shape and torch dtype name (`float32`) of an input or a result. dynamic_dims: the dimensions of open size, -1 in `shape`."""

    shape: list[int]
    dtype: str
    dynamic_dims: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, shape: Sequence[int], dtype: torch.dtype) -> VariableSignature:
        """The signature of such tensors. shape: -1 where a size is open."""
        return cls(list(shape), str(dtype).removeprefix("torch."), [dim for dim, size in enumerate(shape) if size == -1])

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has this dtype and these sizes, where they are not open."""
        if tensor.dtype is not self.torch_dtype or tensor.ndim != len(self.shape):
            return False
        return all(dim in self.dynamic_dims or tensor.shape[dim] == size for dim, size in enumerate(self.shape))


@dataclass(frozen=True, slots=True)
class InputLocation:
    """One input: which argument (flattened), which entry of the state dict, which constant, or the seeds of the random operations."""

    type_: VariableType
    position: int = -1
    name: str = ""

    @classmethod
    def input_arg(cls, position: int) -> InputLocation:
        """An argument."""
        return cls(VariableType.INPUT_ARG, position=position)

    @classmethod
    def parameter(cls, name: str) -> InputLocation:
        """A parameter or buffer."""
        return cls(VariableType.PARAMETER, name=name)

    @classmethod
    def constant(cls, position: int) -> InputLocation:
        """A constant tensor of the program."""
        return cls(VariableType.CONSTANT, position=position)

    @classmethod
    def seeds(cls) -> InputLocation:
        """64 random bits for each random operation: uint32 of shape (operations, 2)."""
        return cls(VariableType.SEEDS)


@dataclass(frozen=True, slots=True)
class StableHLOFunctionMeta:
    """The signature of a function. unused_inputs: arguments that it does not take, since nothing depends on them.

    input_pytree_spec, output_pytree_spec: nesting of arguments `(args, kwargs)` and results, as torch's pytree writes it.
    written: the arguments and the entries of the state dict whose new values are the function's last results, behind those that it
    returns. constant_inputs, constant_outputs: what is no tensor among flat arguments and returned results, by position there.
    """

    name: str
    stablehlo_version: str
    input_signature: list[VariableSignature]
    output_signature: list[VariableSignature]
    input_locations: list[InputLocation]
    unused_inputs: list[tuple[InputLocation, VariableSignature]] = field(default_factory=list)
    input_pytree_spec: str | None = None
    output_pytree_spec: str | None = None
    format_version: int = 1
    written: list[InputLocation] = field(default_factory=list)
    constant_inputs: list[tuple[int, Number]] = field(default_factory=list)
    constant_outputs: list[tuple[int, Number]] = field(default_factory=list)

    def to_json(self) -> str:
        """The text of a `.meta` file."""
        return json.dumps(self, indent=2, cls=StableHLOJSONSerializer)

    @classmethod
    def from_json(cls, text: str) -> StableHLOFunctionMeta:
        """Parse what `to_json` wrote. Raises ValueError for another text, and for that of a newer release."""
        version = json.loads(text).get("format_version", 1)
        if version > FORMAT_VERSION:
            raise ValueError(f"the exported function is of form {version}, this release of xla-core reads forms up to {FORMAT_VERSION}")
        try:
            found = json.loads(text, object_hook=stablehlo_obj_hook)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the .meta file of an exported function: {error!r}") from error
        if not isinstance(found, cls):
            raise ValueError("not the .meta file of an exported function: it does not have its fields")
        return found


_SECOND_FORM = {"format_version", "written", "constant_inputs", "constant_outputs"}


class StableHLOJSONSerializer(json.JSONEncoder):
    """Writes the signatures and locations of functions as JSON, which `stablehlo_obj_hook` reads."""

    def default(self, o: Any) -> Any:
        """The fields of a signature or location, the text of a kind of inputs; raises TypeError for anything else."""
        if isinstance(o, enum.Enum):
            return o.value
        if dataclasses.is_dataclass(o) and not isinstance(o, type):
            given = {each.name: getattr(o, each.name) for each in dataclasses.fields(o)}
            first_form = given.get("format_version") == 1
            return {name: value for name, value in given.items() if not (first_form and name in _SECOND_FORM)}
        return super().default(o)


def stablehlo_obj_hook(dct: dict[str, Any]) -> Any:
    """What a JSON object stands for: a signature, a location, a function's meta; itself if it has the fields of none."""
    names = set(dct)
    if names == {each.name for each in dataclasses.fields(VariableSignature)}:
        return VariableSignature(**dct)
    if names == {each.name for each in dataclasses.fields(InputLocation)}:
        return InputLocation(VariableType(dct["type_"]), dct["position"], dct["name"])
    if "input_locations" in names and names <= {each.name for each in dataclasses.fields(StableHLOFunctionMeta)}:
        pairs = {name: [tuple(each) for each in dct.get(name, ())] for name in ("unused_inputs", "constant_inputs", "constant_outputs")}
        return StableHLOFunctionMeta(**{**dct, **pairs})
    return dct


def spec_text(spec: TreeSpec) -> str:
    """A nesting as `.meta` files have it."""
    return str(treespec_dumps(spec))

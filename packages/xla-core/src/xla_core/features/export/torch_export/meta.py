"""The signature of an exported function, and its JSON in a `.meta` file, which is checked when it is read.

A meta without `format_version` has the first form, which has no writes, no numbers among arguments and results, and no seeds.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from xla_core.base.dtypes import DTYPES
from xla_core.features.export import typed_json
from xla_core.features.export.inside import check_file_name
from xla_core.features.export.torch_export import pytree_text

FORMAT_VERSION = 2
"""Latest form of metas: this release reads it, and writes it for functions that need it."""

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
_MOST_SEEDS = 1 << 20
"""Most random operations of one function: each draws a seed at each call."""

Number = int | float | bool | str | None  # an argument or a result that is not a tensor


class VariableType(enum.Enum):
    """The kinds of inputs of a function."""

    INPUT_ARG = "input_arg"
    PARAMETER = "parameter"
    CONSTANT = "constant"
    SEEDS = "seeds"


@dataclass(frozen=True, slots=True)
class VariableSignature:
    """Shape and torch dtype name (`float32`) of an input or a result. dynamic_dims: dimensions of open size, which are -1 in `shape`."""

    shape: list[int]
    dtype: str
    dynamic_dims: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, shape: Sequence[int], dtype: torch.dtype) -> VariableSignature:
        """The signature for a shape and dtype. shape: with -1 for open sizes."""
        return cls(list(shape), str(dtype).removeprefix("torch."), [dim for dim, size in enumerate(shape) if size == -1])

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype. Raises ValueError for an unknown name."""
        if self.dtype not in _DTYPES:
            raise ValueError(f"a signature has the dtype {self.dtype[:60]!r}, not one of {', '.join(_DTYPES)}")
        return _DTYPES[self.dtype]

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has this dtype and these fixed sizes."""
        if tensor.dtype is not self.torch_dtype or tensor.ndim != len(self.shape):
            return False
        return all(dim in self.dynamic_dims or tensor.shape[dim] == size for dim, size in enumerate(self.shape))


@dataclass(frozen=True, slots=True)
class InputLocation:
    """Where an input comes from: a flat argument, an entry of the state dict, a constant, or the seeds of random operations."""

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
    """The signature of a function. unused_inputs: arguments and weights that it does not take, because nothing depends on them.

    input_pytree_spec, output_pytree_spec: nesting of arguments `(args, kwargs)` and results, as torch's pytree writes it.
    written: arguments and entries of the state dict whose new values follow the returned results. constant_inputs, constant_outputs: values
    that are not tensors among flat arguments and returned results, by index.
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
        """Parse a text of `to_json`. Raises ValueError for other texts, and for texts of a newer release."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not the meta of an exported function: no JSON ({error})") from error
        version = data.get("format_version", 1) if isinstance(data, dict) else None
        if type(version) is int and version > FORMAT_VERSION:
            raise ValueError(f"the exported function is of form {version}, this release of xla-core reads forms up to {FORMAT_VERSION}")
        unknown = set(data) - {member.name for member in dataclasses.fields(cls)} if isinstance(data, dict) else set()
        if unknown:
            raise ValueError(f"not the meta of an exported function: it has the key {min(unknown)[:60]!r}")
        try:
            meta: StableHLOFunctionMeta = typed_json.read(cls, data, "the function", least=-1)
            meta.check()
        except ValueError as error:
            raise ValueError(f"not the meta of an exported function: {error}") from error
        return meta

    def check(self) -> None:
        """Raise ValueError for invalid content: names that are no file names, unknown dtypes, nestings of other containers than tuples,
        lists and dicts, indices out of range."""
        check_file_name(self.name)
        unused = [location for location, _ in self.unused_inputs]
        for location in (*self.input_locations, *unused, *self.written):
            _check_location(location)
        for signature in (*self.input_signature, *self.output_signature, *[signature for _, signature in self.unused_inputs]):
            _check_signature(signature)
        if len(self.input_locations) != len(self.input_signature):
            raise ValueError(f"it has {len(self.input_locations)} input_locations and {len(self.input_signature)} signatures of inputs")
        for location, signature in zip(self.input_locations, self.input_signature, strict=True):
            if location.type_ is VariableType.SEEDS and not (signature.shape[1:] == [2] and 0 <= signature.shape[0] <= _MOST_SEEDS):
                raise ValueError(f"it takes seeds of shape {signature.shape}, not [operations, 2] with {_MOST_SEEDS} operations at most")
        if any(location.type_ not in (VariableType.INPUT_ARG, VariableType.PARAMETER) for location in self.written):
            raise ValueError("it writes to what is neither an argument nor a weight")
        if len(self.written) > len(self.output_signature):
            raise ValueError(f"it writes {len(self.written)} values, and has {len(self.output_signature)} results")
        self._check_nestings([*self.input_locations, *unused, *self.written])

    def _check_nestings(self, locations: Sequence[InputLocation]) -> None:
        """Raise ValueError for nestings whose number of leaves is not that of arguments or results."""
        returned = len(self.output_signature) - len(self.written) + len(self.constant_outputs)
        if any(not 0 <= position < returned for position, _ in self.constant_outputs):
            raise ValueError(f"a constant is a result that is not there, of {returned}")
        if self.output_pytree_spec is not None and pytree_text.loads(self.output_pytree_spec).num_leaves != returned:
            raise ValueError(f"output_pytree_spec does not have {returned} leaves, which the function returns")
        if self.input_pytree_spec is not None:
            arguments = pytree_text.loads(self.input_pytree_spec).num_leaves
            positions = [location.position for location in locations if location.type_ is VariableType.INPUT_ARG]
            wrong = [
                position for position in (*positions, *[position for position, _ in self.constant_inputs]) if not 0 <= position < arguments
            ]
            if wrong:
                raise ValueError(f"it takes argument {wrong[0]}, and input_pytree_spec has {arguments} leaves")


def _check_location(location: InputLocation) -> None:
    if location.type_ is VariableType.PARAMETER:
        check_file_name(location.name)
    elif location.type_ in (VariableType.INPUT_ARG, VariableType.CONSTANT) and location.position < 0:
        raise ValueError(f"it takes the {location.type_.value} {location.position}, which cannot be")


def _check_signature(signature: VariableSignature) -> None:
    signature.torch_dtype  # noqa: B018  # raises for unknown dtypes
    if any(not 0 <= dim < len(signature.shape) for dim in signature.dynamic_dims):
        raise ValueError(f"a signature of shape {signature.shape[:8]} has the open dimensions {signature.dynamic_dims[:8]}")


_SECOND_FORM = {"format_version", "written", "constant_inputs", "constant_outputs"}


class StableHLOJSONSerializer(json.JSONEncoder):
    """Writes signatures and locations of functions as JSON, which `stablehlo_obj_hook` reads."""

    def default(self, o: Any) -> Any:
        """The fields of a signature or location, or the text of a VariableType. Raises TypeError for other objects."""
        if isinstance(o, enum.Enum):
            return o.value
        if dataclasses.is_dataclass(o) and not isinstance(o, type):
            fields = {member.name: getattr(o, member.name) for member in dataclasses.fields(o)}
            first_form = fields.get("format_version") == 1
            return {name: value for name, value in fields.items() if not (first_form and name in _SECOND_FORM)}
        return super().default(o)


def stablehlo_obj_hook(dct: dict[str, Any]) -> Any:
    """Convert a JSON object to a signature, a location or a function's meta, by its fields; return other objects unchanged."""
    names = set(dct)
    if names == {member.name for member in dataclasses.fields(VariableSignature)}:
        return VariableSignature(**dct)
    if names == {member.name for member in dataclasses.fields(InputLocation)}:
        return InputLocation(VariableType(dct["type_"]), dct["position"], dct["name"])
    if "input_locations" in names and names <= {member.name for member in dataclasses.fields(StableHLOFunctionMeta)}:
        pairs = {name: [tuple(pair) for pair in dct.get(name, ())] for name in ("unused_inputs", "constant_inputs", "constant_outputs")}
        return StableHLOFunctionMeta(**{**dct, **pairs})
    return dct

"""An exported program: StableHLO functions, the weights they take, and the folder that holds both.

Folder: `functions/<method>.meta` (JSON), `.bytecode`, `.mlir`; `data/<name>` and `constants/<i>` (NumPy files). A meta without
`format_version` is of the first form, which knows neither what a function writes, nor numbers among arguments and results, nor seeds.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

from xla_core._compat import TreeSpec, tree_flatten, tree_unflatten, treespec_dumps, treespec_loads
from xla_core.compile.emit import arrays_of
from xla_core.dtypes import natural_dtype
from xla_core.export.refinement import with_fixed_sizes
from xla_core.export.stablehlo import Run, compiled
from xla_core.frontend.interop import alias_key, buffer_of, tensor_from_buffer
from xla_core.runtime.client import current_recorder
from xla_core.runtime.transfer import to_torch

FORMAT_VERSION = 2
"""Of metas: what this release reads, and writes where a function needs it."""

Number = int | float | bool | str | None  # an argument or a result that is no tensor
StateArray = np.ndarray[Any, Any] | jax.Array


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


@dataclass(frozen=True, slots=True)
class StableHLOFunc:
    """A function. text: the module for people, None if it was left out."""

    meta: StableHLOFunctionMeta
    bytecode: bytes
    text: str | None = None


@dataclass(slots=True)
class StableHLOModelBundle:
    """Functions over one state dict. What a call has written there is an array of the device, which NumPy reads as its own."""

    state_dict: dict[str, StateArray]
    additional_constants: list[np.ndarray[Any, Any]]
    stablehlo_funcs: list[StableHLOFunc]


class StableHLOGraphModule:
    """An exported program that can be called, saved and loaded; results are xla tensors. Each method is an attribute, too.

    What the program writes to its buffers is kept in the bundle, and is there at the next call; what it writes to arguments, in them.
    Random operations draw from the state of the device, which `torch.manual_seed` sets. Weights are copied to the device at the first call:
    to change one, assign another array.
    """

    def __init__(self, bundle: StableHLOModelBundle) -> None:
        self._bundle = bundle
        self._functions = {function.meta.name: function for function in bundle.stablehlo_funcs}
        self._compiled: dict[tuple[Any, ...], Run] = {}
        self._placed: dict[str, tuple[StateArray, torch.Tensor]] = {}

    def __reduce__(self) -> tuple[type[StableHLOGraphModule], tuple[StableHLOModelBundle]]:
        return type(self), (self._bundle,)

    @property
    def bundle(self) -> StableHLOModelBundle:
        """The bundle that is saved; keras takes it by its name upstream, `_bundle`."""
        return self._bundle

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The one method, or `forward`, with the arguments and the result nesting of the exported module.

        Raises ValueError for another nesting, shape, dtype or number, KeyError if there are several methods and none is `forward`.
        """
        return self._call(self._function(None), *args, **kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = self.__dict__.get("_functions", {}).get(name)
        if function is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return partial(self._call, function)

    def _call(self, function: StableHLOFunc, *args: Any, **kwargs: Any) -> Any:
        meta = function.meta
        flat, spec = tree_flatten((args, kwargs))
        if meta.input_pytree_spec is not None and treespec_loads(meta.input_pytree_spec) != spec:
            raise ValueError(f"arguments are nested as {spec}, the exported program takes {treespec_loads(meta.input_pytree_spec)}")
        results = self.evaluate(meta.name, flat)
        if meta.output_pytree_spec is None:
            return results[0] if len(results) == 1 else results
        nesting: TreeSpec = treespec_loads(meta.output_pytree_spec)
        return tree_unflatten(results, nesting)

    def evaluate(self, method_name: str, args: Sequence[Any]) -> list[Any]:
        """The flat results of a method on flat arguments, in this process's default device: tensors, and the numbers among them.

        Raises as a call.
        """
        function = self._function(method_name)
        meta, device = function.meta, current_recorder().device
        _check(meta, args)
        tensors = [
            self._input(location, signature, args).to(device)
            for location, signature in zip(meta.input_locations, meta.input_signature, strict=True)
        ]
        found = self._run_of(function, device, [tensor.shape for tensor in tensors])(tensors)
        count = len(found) - len(meta.written)
        results: list[Any] = found[:count]
        for position, number in meta.constant_outputs:
            results.insert(position, number)
        for location, value in zip(meta.written, found[count:], strict=True):
            if location.type_ is VariableType.PARAMETER:
                self.bundle.state_dict[location.name] = buffer_of(value)
                self._placed.pop(location.name, None)
            else:
                args[location.position].detach().copy_(value)
        return results

    def _run_of(self, function: StableHLOFunc, device: torch.device, shapes: list[torch.Size]) -> Run:
        """The compiled function; where it leaves sizes open, for inputs of such shapes."""
        has_open_sizes = any(signature.dynamic_dims for signature in function.meta.input_signature)
        key = (function.meta.name, device, *(shapes if has_open_sizes else ()))
        if key not in self._compiled:
            module = with_fixed_sizes(function.bytecode, shapes) if has_open_sizes else function.bytecode
            self._compiled[key] = compiled(module, device)
        return self._compiled[key]

    def _input(self, location: InputLocation, signature: VariableSignature, args: Sequence[Any]) -> torch.Tensor:
        if location.type_ is VariableType.INPUT_ARG:
            return _argument(location.position, signature, args)
        if location.type_ is VariableType.SEEDS:
            recorder = current_recorder()
            return to_torch(arrays_of([], [], [recorder.draw() for _ in range(signature.shape[0])])[0], torch.uint32)
        if location.type_ is VariableType.CONSTANT:
            return to_torch(self.bundle.additional_constants[location.position], signature.torch_dtype)
        array = self.bundle.state_dict[location.name]
        if isinstance(array, jax.Array):
            return tensor_from_buffer(array, signature.torch_dtype)
        if location.name not in self._placed or self._placed[location.name][0] is not array:
            self._placed[location.name] = array, to_torch(array, signature.torch_dtype).to(current_recorder().device)
        return self._placed[location.name][1]

    def _function(self, method_name: str | None) -> StableHLOFunc:
        if method_name is None:
            method_name = next(iter(self._functions)) if len(self._functions) == 1 else "forward"
        if method_name not in self._functions:
            raise KeyError(f"no exported function {method_name!r}; there are {', '.join(self._functions)}")
        return self._functions[method_name]

    def get_stablehlo_text(self, method_name: str | None = None) -> str | None:
        """The module's text."""
        return self._function(method_name).text

    def get_stablehlo_bytecode(self, method_name: str | None = None) -> bytes:
        """The module as a versioned artifact."""
        return self._function(method_name).bytecode

    def save(self, directory: str, include_weights: bool = True) -> None:
        """Write the folder."""
        save_bundle(self.bundle, Path(directory), include_weights)

    @staticmethod
    def load(directory: str) -> StableHLOGraphModule:
        """Read the folder. Runs no code from it."""
        return StableHLOGraphModule(load_bundle(Path(directory)))


def _argument(position: int, signature: VariableSignature, args: Sequence[Any]) -> torch.Tensor:
    given = args[position]
    tensor = isinstance(given, torch.Tensor)
    if not tensor or not signature.takes(given):
        what = f"{given.dtype} of {list(given.shape)}" if tensor else repr(given)
        raise ValueError(f"argument {position} is {what}, the exported program takes {signature.dtype} of {signature.shape}")
    return given.detach()  # type: ignore[no-any-return]


def _check(meta: StableHLOFunctionMeta, args: Sequence[Any]) -> None:
    """Raise ValueError for arguments that are others than the function was exported with, where they are no inputs of it."""
    for location, signature in meta.unused_inputs:
        if location.type_ is VariableType.INPUT_ARG:
            _argument(location.position, signature, args)
    for position, number in meta.constant_inputs:
        if repr(args[position]) != repr(number):
            raise ValueError(f"argument {position} is {args[position]!r}, the program was exported for {number!r}: export it again")
    for location in meta.written:
        memory = _memory(args[location.position]) if location.type_ is VariableType.INPUT_ARG else None
        for other, given in enumerate(args):
            if memory is not None and other != location.position and _memory(given) == memory:
                raise ValueError(f"the program writes to argument {location.position}, which is argument {other} too: copy it")


def _memory(given: Any) -> Hashable:
    """Equal for tensors that begin with the same element; None for what has none."""
    if not isinstance(given, torch.Tensor) or not given.numel():
        return None
    return alias_key(given) if given.device.type == "xla" else given.data_ptr()


def save_bundle(bundle: StableHLOModelBundle, folder: Path, include_weights: bool) -> None:
    """Write a bundle to a folder, which is made if it is not there; functions that it held before are gone."""
    for name in ("data", "functions", "constants"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for meta in (folder / "functions").glob("*.meta"):
        meta.unlink()
    if include_weights:
        for name, array in bundle.state_dict.items():
            _save(folder / "data" / name, array)
    for number, array in enumerate(bundle.additional_constants):
        _save(folder / "constants" / str(number), array)
    for function in bundle.stablehlo_funcs:
        base = folder / "functions" / function.meta.name
        base.with_name(f"{base.name}.meta").write_text(function.meta.to_json(), encoding="utf-8")
        base.with_name(f"{base.name}.bytecode").write_bytes(function.bytecode)
        if function.text is not None:
            base.with_name(f"{base.name}.mlir").write_text(function.text, encoding="utf-8")


def _save(path: Path, array: StateArray) -> None:
    with path.open("wb") as file:
        np.save(file, np.asarray(array), allow_pickle=False)


def _load(path: Path, dtype: torch.dtype | None) -> np.ndarray[Any, Any]:
    with path.open("rb") as file:
        array: np.ndarray[Any, Any] = np.load(file, allow_pickle=False)
    return array.view(natural_dtype(dtype)) if array.dtype.kind == "V" and dtype is not None else array


def load_bundle(folder: Path) -> StableHLOModelBundle:
    """Read a folder. Raises ValueError if it holds no functions."""
    metas = [StableHLOFunctionMeta.from_json(file.read_text(encoding="utf-8")) for file in sorted((folder / "functions").glob("*.meta"))]
    if not metas:
        raise ValueError(f"{folder} holds no exported functions (functions/<method>.meta)")
    dtypes = {
        (location.type_, location.name, location.position): signature.torch_dtype
        for meta in metas
        for location, signature in (*zip(meta.input_locations, meta.input_signature, strict=True), *meta.unused_inputs)
    }
    data = folder / "data"
    state: dict[str, StateArray] = {
        file.relative_to(data).as_posix(): _load(file, dtypes.get((VariableType.PARAMETER, file.name, -1)))
        for file in (sorted(data.rglob("*")) if data.is_dir() else ())
        if file.is_file()
    }
    count = len(list((folder / "constants").glob("*")))
    constants = [_load(folder / "constants" / str(number), dtypes.get((VariableType.CONSTANT, "", number))) for number in range(count)]
    return StableHLOModelBundle(state, constants, [_read_function(folder / "functions", meta) for meta in metas])


def _read_function(folder: Path, meta: StableHLOFunctionMeta) -> StableHLOFunc:
    text = folder / f"{meta.name}.mlir"
    bytecode = (folder / f"{meta.name}.bytecode").read_bytes()
    return StableHLOFunc(meta, bytecode, text.read_text(encoding="utf-8") if text.exists() else None)


def spec_text(spec: TreeSpec) -> str:
    """A nesting as `.meta` files have it."""
    return str(treespec_dumps(spec))

"""A callable exported program: StableHLO functions over their weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import torch

from xla_core.base.arrays import to_torch
from xla_core.base.private_torch import TreeSpec, tree_flatten, tree_unflatten
from xla_core.engine.compile.emit import arrays_of
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.tensor.interop import alias_key, buffer_of, tensor_from_buffer
from xla_core.features.export.stablehlo import Run, compiled
from xla_core.features.export.torch_export import pytree_text
from xla_core.features.export.torch_export.meta import InputLocation, StableHLOFunctionMeta, VariableSignature, VariableType
from xla_core.features.export.torch_export.model_bundle import StableHLOFunc, StableHLOModelBundle, StateArray, load_bundle, save_bundle
from xla_core.features.export.torch_export.refinement import with_fixed_sizes


class StableHLOGraphModule:
    """An exported program that can be called, saved and loaded. Results are xla tensors. Each method is an attribute, too.

    The bundle keeps what the program writes to its buffers for the next call; writes to arguments change the arguments. Random operations
    draw from the device's state, which `torch.manual_seed` sets. The first call copies weights to the device: to change one, assign another
    array.
    """

    def __init__(self, bundle: StableHLOModelBundle) -> None:
        self._bundle = bundle
        self._functions = {function.meta.name: function for function in bundle.stablehlo_funcs}
        self._takes = {name: _nesting(function.meta.input_pytree_spec) for name, function in self._functions.items()}
        self._gives = {name: _nesting(function.meta.output_pytree_spec) for name, function in self._functions.items()}
        self._compiled: dict[tuple[Any, ...], Run] = {}
        self._placed: dict[str, tuple[StateArray, torch.Tensor]] = {}

    def __reduce__(self) -> tuple[type[StableHLOGraphModule], tuple[StableHLOModelBundle]]:
        return type(self), (self._bundle,)

    @property
    def bundle(self) -> StableHLOModelBundle:
        """The bundle to save. Keras reads it under its upstream name, `_bundle`."""
        return self._bundle

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the only method, or `forward`, with the arguments and result nesting of the exported module.

        Raises ValueError for another nesting, shape, dtype or number, KeyError if there are several methods and none is `forward`.
        """
        return self._call(self._function(None), *args, **kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = self.__dict__.get("_functions", {}).get(name)
        if function is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return partial(self._call, function)

    def _call(self, function: StableHLOFunc, *args: Any, **kwargs: Any) -> Any:
        name = function.meta.name
        flat, spec = tree_flatten((args, kwargs))
        takes, gives = self._takes[name], self._gives[name]
        if takes is not None and takes != spec and takes != (nesting := pytree_text.plain(spec, "an argument")):
            raise ValueError(f"arguments are nested as {nesting}, the exported program takes {takes}")
        results = self.evaluate(name, flat)
        if gives is None:
            return results[0] if len(results) == 1 else results
        return tree_unflatten(results, gives)

    def evaluate(self, method_name: str, args: Sequence[Any]) -> list[Any]:
        """The flat results of a method for flat arguments, on this process's default device: tensors and numbers.

        Raises as a call.
        """
        function = self._function(method_name)
        meta, device = function.meta, current_recorder().device
        _check(meta, args)
        tensors = [
            self._input(location, signature, args).to(device)
            for location, signature in zip(meta.input_locations, meta.input_signature, strict=True)
        ]
        outputs = self._run_of(function, device, [tensor.shape for tensor in tensors])(tensors)
        count = len(outputs) - len(meta.written)
        results: list[Any] = outputs[:count]
        for position, number in meta.constant_outputs:
            results.insert(position, number)
        for location, value in zip(meta.written, outputs[count:], strict=True):
            if location.type_ is VariableType.PARAMETER:
                self.bundle.state_dict[location.name] = buffer_of(value)
                self._placed.pop(location.name, None)
            else:
                args[location.position].detach().copy_(value)
        return results

    def _run_of(self, function: StableHLOFunc, device: torch.device, shapes: list[torch.Size]) -> Run:
        """The compiled function; if it has open sizes, compiled for these shapes."""
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
        array = self.bundle.state_dict.get(location.name)
        if array is None:
            raise ValueError(
                f"the exported program takes the weight {location.name!r}, which is not in its folder: assign it to state_dict"
            )
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
        """Replace the export in a folder atomically, and make the folder if needed.

        include_weights: write `state_dict`, too. Raises ValueError for names that no file can have; BlockingIOError if another program is
        saving there, OSError: then the folder is unchanged.
        """
        save_bundle(self.bundle, Path(directory), include_weights)

    @staticmethod
    def load(directory: str) -> StableHLOGraphModule:
        """Read a folder, and check its files if it has an index. Nothing in it runs before a call, and then only in XLA.

        Raises ExportFolderError, a ValueError with the file's name, for files that are damaged, newer, or no export; OSError.
        """
        return StableHLOGraphModule(load_bundle(Path(directory)))


def _nesting(text: str | None) -> TreeSpec | None:
    return None if text is None else pytree_text.loads(text)


def _argument(position: int, signature: VariableSignature, args: Sequence[Any]) -> torch.Tensor:
    argument = args[position]
    is_tensor = isinstance(argument, torch.Tensor)
    if not is_tensor or not signature.takes(argument):
        description = f"{argument.dtype} of {list(argument.shape)}" if is_tensor else repr(argument)
        raise ValueError(f"argument {position} is {description}, the exported program takes {signature.dtype} of {signature.shape}")
    return argument.detach()  # type: ignore[no-any-return]


def _check(meta: StableHLOFunctionMeta, args: Sequence[Any]) -> None:
    """Raise ValueError for wrong unused arguments and constants, and for an argument that is written to and shares memory with another."""
    for location, signature in meta.unused_inputs:
        if location.type_ is VariableType.INPUT_ARG:
            _argument(location.position, signature, args)
    for position, number in meta.constant_inputs:
        if repr(args[position]) != repr(number):
            raise ValueError(f"argument {position} is {args[position]!r}, the program was exported for {number!r}: export it again")
    for location in meta.written:
        memory = _memory(args[location.position]) if location.type_ is VariableType.INPUT_ARG else None
        for other, argument in enumerate(args):
            if memory is not None and other != location.position and _memory(argument) == memory:
                raise ValueError(f"the program writes to argument {location.position}, which is argument {other} too: copy it")


def _memory(argument: Any) -> Hashable:
    """A key that is equal for tensors beginning at the same element in memory; None if there is no element."""
    if not isinstance(argument, torch.Tensor) or not argument.numel():
        return None
    return alias_key(argument) if argument.device.type == "xla" else argument.data_ptr()

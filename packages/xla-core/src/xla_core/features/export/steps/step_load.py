"""`torch_xla.load_step`: loads a step that another process exported, and calls it like the captured function."""

from __future__ import annotations

import json
import math
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch

from xla_core.base.budgets import budget
from xla_core.base.dtypes import DTYPES, device_dtype
from xla_core.base.errors import ExecutionError, StepFileError
from xla_core.engine.compile.emit import arrays_of
from xla_core.engine.graph import rng
from xla_core.engine.runtime.client import current_recorder, jax_device, placement_of, recorder_of
from xla_core.engine.runtime.interrupts import uninterrupted
from xla_core.engine.tensor.interop import buffer_of, storage_key, tensor_from_buffer
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.features.export.callbacks import check_code
from xla_core.features.export.stablehlo import stablehlo_version
from xla_core.features.export.steps import formulas, nesting, step_executables, step_file
from xla_core.features.export.steps.step_description import STEP, Description, Kind, Returned, Slot, StoredProgram, Tensor
from xla_core.features.export.steps.step_executables import Run

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


@budget(compiles=None, reads=None)
def load_step(path: str | os.PathLike[str], *, executables: bool = True) -> ExportedStep:
    """Load a file of `export_step` to the default device, with the exported state. Runs no Python from the file.

    executables: if the step was exported for a target, use the compiled programs in the file beside it, which are machine code. Where they
    do not fit this process, and with False, programs are compiled when they are first called.
    Raises StepFileError for a file that is no exported step, is damaged, or of a newer version; ValueError for one for another platform, or
    for other dtypes on the device (XLA_USE_BF16); ExecutionError within a target, where nothing runs; OSError.
    """
    recorder = current_recorder()
    device, target = jax_device(recorder), placement_of(recorder).target
    if not target.attached:
        raise ExecutionError(f"nothing runs on the target {target.name}: load the step in a process that has such devices")
    with step_file.open_file(path, STEP) as reader:
        description = reader.description
        try:
            _check(description, device.platform)
            codes = [_checked_code(reader.part(program.code, f"program {index}")) for index, program in enumerate(description.programs)]
        except StepFileError as error:
            raise error if str(error).startswith(str(path)) else reader.error(f"cannot be read: {error}") from error
        state = {}
        for name, kept in description.state.items():
            if kept.value is None:
                continue
            array = np.frombuffer(reader.part(kept.value, name), np.dtype(kept.tensor.stored)).reshape(kept.tensor.shape)
            with jax.enable_x64(True):
                state[name] = jax.device_put(array, device, may_alias=False)
    compiled = step_executables.load(path, codes, target, device) if executables and description.compiled_for else None
    return ExportedStep(description, codes, state, recorder.device, compiled or ())


class ExportedStep:
    """A step that another process captured. Call it like the captured function, with tensors on the device or the CPU.

    A call returns what the function would have returned, and updates the step's own state, which `state_dict` shows. numbers:
    hyperparameters by name, such as `optimizer.param_groups.0.lr`, and step counts. A call reads them; users may set them between calls.
    """

    def __init__(
        self,
        description: Description,
        codes: Sequence[bytes],
        state: dict[str, jax.Array],
        device: torch.device,
        compiled: Sequence[Run] = (),
    ) -> None:
        self.numbers: dict[str, float] = dict(description.numbers)
        self._description, self._state = description, state
        self._device, self._place = device, jax_device(recorder_of(device))
        self._random_state = description.random_state
        self._lock = threading.Lock()
        self._compiled: dict[int, Run] = dict(enumerate(compiled))
        self._codes = codes
        self._programs: dict[str, int] = {}
        for index, program in enumerate(description.programs):
            leaves = [_kind(str(leaf.tensor), leaf.requires_grad) if leaf.tensor else leaf.value for leaf in program.leaves]
            self._programs[json.dumps([program.arguments, leaves])] = index

    def __repr__(self) -> str:
        return f"<exported step {self._description.name}: {len(self._description.state)} state tensors, takes {self._takes()}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step. Returns tensors on the device in the captured function's structure, and writes to arguments like the function.

        Raises ValueError for arguments that no program of the file takes, for numbers with which the function would have taken another
        branch, and before `load_state_dict` if the file has no values; ExecutionError.
        """
        leaves, nest = nesting.flatten((args, kwargs))
        index = self._program(leaves, nest)
        program = self._description.programs[index]
        tensors = [leaf for leaf, leaf_form in zip(leaves, program.leaves, strict=True) if leaf_form.kind is Kind.ARGUMENT]
        _check_shared(program, tensors)
        buffers = [buffer_of(tensor.detach().to(self._device)) for tensor in tensors]
        with self._lock:
            numbers = formulas.evaluate(program.formulas, self._checked_numbers(self.numbers, program))
            draw = rng.drawing_from(rng.past_step(self._random_state))
            packed = dict(zip((Kind.NUMBERS, Kind.SEEDS), (np.array(numbers, np.float64), _packed_seeds(draw, program.draws)), strict=True))
            arrays = [self._input(slot, packed, buffers) for slot in program.inputs]
            run = self._compiled_program(index)
            with uninterrupted():  # the call donates the old state
                outputs = self._run(run, arrays)
                self._keep(program, outputs)
                self._random_state = draw()
                for _ in range(program.steps):
                    self._random_state = rng.past_step(self._random_state)
        for slot, output in zip(program.outputs, outputs, strict=True):
            if slot.kind is Kind.ARGUMENT:
                tensors[slot.number].detach().copy_(tensor_from_buffer(output, tensors[slot.number].dtype))
        return nesting.unflatten([_returned(item, program, outputs, tensors) for item in program.results], program.returned)

    def _input(self, slot: Slot, packed: Mapping[Kind, Any], buffers: list[jax.Array]) -> Any:
        if slot.kind is Kind.STATE:
            try:
                return self._state[slot.name]  # on the device already
            except KeyError:
                raise self._without_values() from None
        with jax.enable_x64(True):
            return jax.device_put(buffers[slot.number] if slot.kind is Kind.ARGUMENT else packed[slot.kind], self._place)

    def _compiled_program(self, index: int) -> Run:
        run = self._compiled.get(index)
        if run is None:
            try:
                run = self._compiled[index] = step_executables.compile_code(self._codes[index], self._place)
            except (RuntimeError, ValueError, TypeError) as error:
                raise self._failed(error) from error
        return run

    def _run(self, run: Run, arrays: list[Any]) -> list[jax.Array]:
        try:
            with jax.enable_x64(True):
                return run(arrays)
        except (RuntimeError, ValueError, TypeError) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> ExecutionError:
        return ExecutionError(f"the exported step {self._description.name} did not run on {self._place}: {error}")

    def _without_values(self) -> ValueError:
        missing = [name for name in self._description.state if name not in self._state]
        return ValueError(
            f"the step {self._description.name} was captured for {self._description.compiled_for or 'a target'}, where nothing runs, so "
            f"{', '.join(missing[:3])}{', …' * (len(missing) > 3)} have no values: give them by load_state_dict"
        )

    def _keep(self, program: StoredProgram, outputs: list[jax.Array]) -> None:
        self._state.update({slot.name: output for slot, output in zip(program.outputs, outputs, strict=True) if slot.kind is Kind.STATE})
        for count in program.counts:
            now = self.numbers[count.names[0]] + count.advance
            self.numbers.update(dict.fromkeys(count.names, now))

    def _program(self, leaves: list[Any], nest: Any) -> int:
        described = [_given(leaf) for leaf in leaves]
        index = self._programs.get(json.dumps([nest, described]))
        if index is None:
            called = nesting.unflatten([_shown(leaf) for leaf in leaves], nest)
            raise ValueError(
                f"no program of the exported step {self._description.name} takes {_call_text(called)}; it takes {self._takes()}. Constants "
                "are part of a program: capture and export one for each"
            )
        return index

    def _takes(self) -> str:
        """The arguments that it has programs for, for messages."""
        texts = []
        for program in self._description.programs:
            leaves = [_Text(str(leaf.tensor)) if leaf.tensor else nesting.decode(leaf.value) for leaf in program.leaves]
            texts.append(_call_text(nesting.unflatten(leaves, program.arguments)))
        return " or ".join(texts)

    def _checked_numbers(self, numbers: Mapping[str, Any], program: StoredProgram | None = None) -> dict[str, float]:
        """The numbers as floats. Raises ValueError for other names, values that are not finite numbers, and step counts that differ."""
        if numbers.keys() != self._description.numbers.keys():
            other = sorted(numbers.keys() ^ self._description.numbers.keys())
            raise ValueError(f"{', '.join(other)}: the numbers of this step are {', '.join(self._description.numbers)}")
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ValueError(f"{name} is {value!r}: numbers of a step are finite floats")
        for count in () if program is None else program.counts:
            values = {name: numbers[name] for name in count.names}
            if len(set(values.values())) > 1:
                raise ValueError(f"step counts that were equal when the step was exported are not: {values}")
        return {name: float(value) for name, value in numbers.items()}

    def state_dict(self) -> dict[str, Any]:
        """Copies of the state by name (`state`, tensors on the device), the numbers, and the random state, for `load_state_dict`.

        Names follow the function's variables, modules and optimizers: `model.0.weight`, `optimizer.state.0.exp_avg`. Raises ValueError
        before `load_state_dict` if the file has no values.
        """
        with self._lock, jax.enable_x64(True):
            if len(self._state) < len(self._description.state):
                raise self._without_values()
            state = {
                name: tensor_from_buffer(jax.numpy.copy(array), _DTYPES[self._description.state[name].tensor.dtype])
                for name, array in self._state.items()
            }
            return {"state": state, "numbers": dict(self.numbers), "random_state": self._random_state}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Copy a state into the step: all of it, or nothing if something is wrong. state_dict: as of `state_dict`, tensors on any device.

        Raises ValueError for names, shapes, dtypes or numbers that are not the step's.
        """
        if state_dict.keys() != {"state", "numbers", "random_state"}:
            raise ValueError(f"the state of a step has the keys state, numbers and random_state, not {', '.join(map(str, state_dict))}")
        tensors: Mapping[str, torch.Tensor] = state_dict["state"]
        names = self._description.state.keys()
        if tensors.keys() != names:
            raise ValueError(f"{', '.join(sorted(tensors.keys() ^ names))}: in one of the states, and not in the other")
        for name, tensor in tensors.items():
            expected = self._description.state[name].tensor
            if _text(tensor) != str(expected):
                raise ValueError(f"{name} is {_text(tensor)}, and {expected} in this step")
        numbers, random_state = self._checked_numbers(state_dict["numbers"]), rng.checked(state_dict["random_state"])
        with jax.enable_x64(True):
            placed = {
                name: jax.device_put(buffer_of(tensor.detach().to(self._device)), self._place, may_alias=False)
                for name, tensor in tensors.items()
            }
        with self._lock:
            self._state, self._random_state = {name: placed[name] for name in names}, random_state
            self.numbers.update(numbers)


def _packed_seeds(draw: Callable[[], int], count: int) -> Any:
    return arrays_of([], [], [draw() for _ in range(count)])[0] if count else None


def _returned(item: Returned, program: StoredProgram, outputs: list[jax.Array], tensors: list[torch.Tensor]) -> Any:
    if item.kind is Kind.RESULT:
        return tensor_from_buffer(outputs[item.number], _DTYPES[program.outputs[item.number].tensor.dtype])
    return tensors[item.number] if item.kind is Kind.ARGUMENT else nesting.decode(item.value)


class _Text(str):
    """A text whose repr has no quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _call_text(nested: Any) -> str:
    args, kwargs = nested
    return f"({', '.join([*map(repr, args), *[f'{name}={value!r}' for name, value in kwargs.items()]])})"


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _kind(text: str, requires_grad: bool) -> Any:
    return {"tensor": text, "requires_grad": requires_grad}


def _given(leaf: Any) -> Any:
    """An argument leaf as JSON, to look up its program."""
    if isinstance(leaf, torch.Tensor):
        return _kind(_text(leaf), leaf.requires_grad)
    try:
        return nesting.encode(leaf)
    except TypeError:
        return {"object": type(leaf).__name__}


def _shown(leaf: Any) -> Any:
    """An argument leaf for messages."""
    if isinstance(leaf, torch.Tensor):
        return _Text(_text(leaf) + (" that requires a gradient" if leaf.requires_grad else ""))
    return leaf


def _check_shared(program: StoredProgram, tensors: list[torch.Tensor]) -> None:
    """Raise ValueError for tensors that share data differently from the captured call, where that matters."""
    keys = [None if tensor_behind(tensor) is None else storage_key(tensor) for tensor in tensors]
    recorded = [leaf for leaf in program.leaves if leaf.kind is Kind.ARGUMENT]
    written = {slot.number for slot in program.outputs if slot.kind is Kind.ARGUMENT}
    for index, leaf in enumerate(recorded):
        if leaf.same_as != index and (keys[index] != keys[leaf.same_as] or tensors[index] is not tensors[leaf.same_as]):
            raise ValueError(
                f"tensor arguments {leaf.same_as} and {index} were the same tensor when the step was captured: give one tensor for both"
            )
        if any(
            other != index and keys[other] is not None and keys[other] == keys[index] and recorded[other].same_as != index
            for other in written
        ):
            raise ValueError(f"tensor argument {index} shares data with one that the step writes to: give a copy, from clone()")


def _check(description: Description, platform: str) -> None:
    """Raise ValueError for a file for another platform or other dtypes on the device; StepFileError for invalid content."""
    if _version(description.stablehlo) > _version(stablehlo_version()):
        raise StepFileError(
            f"it is written in StableHLO {description.stablehlo}, and JAX {jax.__version__} reads up to {stablehlo_version()}: upgrade jax "
            "and jaxlib"
        )
    tensors = [kept.tensor for kept in description.state.values()]
    for program in description.programs:
        formulas.check(program.formulas, description.numbers)
        for result in program.results:
            if result.kind is Kind.CONSTANT:
                nesting.decode(result.value)
        tensors += [leaf.tensor for leaf in program.leaves if leaf.tensor is not None] + [slot.tensor for slot in program.outputs]
        nesting.unflatten(list(program.results), program.returned)
        nesting.unflatten(list(program.leaves), program.arguments)
    for name, kept in description.state.items():
        _check_size(name, kept.tensor, None if kept.value is None else kept.value.size)
    for tensor in tensors:
        _check_dtype(tensor)
    for program in description.programs:
        if platform not in program.platforms:
            raise ValueError(
                f"the step was exported for {', '.join(program.platforms)}, and this device is of {platform}: export it there, or give a "
                "target to export_step"
            )
    rng.checked(description.random_state)


def _version(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(\.\d+)*", text):
        raise StepFileError(f"the version of its StableHLO is {text!r}")
    return tuple(map(int, text.split(".")))


def _check_size(name: str, tensor: Tensor, size: int | None) -> None:
    if tensor.dtype not in _DTYPES or size not in (None, math.prod(tensor.shape) * np.dtype(tensor.stored).itemsize):
        raise StepFileError(f"{name} is {tensor}, held as {tensor.stored}, in {size} bytes")


def _check_dtype(tensor: Tensor) -> None:
    if tensor.dtype not in _DTYPES:
        raise StepFileError(f"a tensor has the dtype {tensor.dtype!r}")
    here = str(device_dtype(_DTYPES[tensor.dtype]))
    if here != tensor.stored:
        raise ValueError(
            f"the step was exported where torch.{tensor.dtype} is held as {tensor.stored}, here it is held as {here}: set XLA_USE_BF16, "
            "XLA_DOWNCAST_BF16 and XLA_USE_32BIT_LONG as they were"
        )


def _checked_code(content: bytearray) -> bytes:
    """Check a program's code. Raises StepFileError for code that is no StableHLO artifact, or calls Python."""
    code = bytes(content)
    try:
        check_code(code)
    except ValueError as error:
        raise StepFileError(f"a program cannot be run: {error}") from error
    return code

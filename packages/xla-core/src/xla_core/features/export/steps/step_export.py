"""`torch_xla.export_step`: writes a captured step to a file, which another process runs without the step's Python."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import torch

from xla_core._version import __version__
from xla_core.base.budgets import budget
from xla_core.base.errors import CaptureError
from xla_core.base.private_jax import lowering_platform
from xla_core.base.private_torch import tree_unflatten
from xla_core.engine.compile import limits
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.pending_graph import Recorder, buffer_value
from xla_core.engine.placement.placement import OneDevice
from xla_core.engine.placement.target import Target
from xla_core.engine.runtime.client import placement_of
from xla_core.engine.runtime.sync import compute
from xla_core.engine.tensor.interop import buffer_of
from xla_core.engine.tensor.plain import ours
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import view_of
from xla_core.engine.tracing.numbers import Symbol
from xla_core.engine.tracing.origins import Argument, ArgumentItself, Constant, Source, State, Zeros
from xla_core.features.captured.arguments import Arguments, Form, TensorForm
from xla_core.features.captured.function import captured_function
from xla_core.features.captured.launch import Launch
from xla_core.features.captured.optimizers import hyperparameters
from xla_core.features.captured.places import Within
from xla_core.features.captured.recorded import Recorded
from xla_core.features.captured.results import Computed, Existing
from xla_core.features.export.callbacks import check_code
from xla_core.features.export.stablehlo import bytes_of, stablehlo_version
from xla_core.features.export.steps import formulas, nesting, step_executables, step_file
from xla_core.features.export.steps.step_description import (
    STEP,
    VERSION,
    CountedNumbers,
    Description,
    Kind,
    Leaf,
    Returned,
    Slot,
    StoredProgram,
    StoredState,
    Tensor,
)
from xla_core.features.export.steps.step_file import Part
from xla_core.features.export.steps.step_names import Names, ProgramNames
from xla_core.features.export.steps.step_program import CapturedProgram, Flat
from xla_core.ops.limits import LIMITS


@budget(compiles=None, reads=None)
def export_step(captured: Callable[..., Any], path: str | os.PathLike[str], *, target: str | Target | None = None) -> None:
    """Write a captured step to a file, with which `load_step` in another process, or JAX alone, continues to train or decode.

    captured: a function of `torch_xla.compile(capture=True)`, called until it was captured. Each kind of arguments is a program of the
    file. The file has the programs as StableHLO, the values of the state (parameters, buffers, states of optimizers), hyperparameters,
    step counts and the random state, and no Python; docs/export.md describes it. An existing file is replaced atomically.
    target: devices that the programs are for, by name (`v5e:4x4`, `h100`) or as `torch_xla.target` gives them; None: those that the step
    was captured for. If they are a target, `path` + `.executable` keeps the compiled programs, and processes with such devices and the same
    versions compile nothing. A step that was captured for a target has no values: `load_state_dict` gives them where it is loaded.
    Raises TypeError for a function that does not capture, CaptureError for one that is not captured, has changed since, or holds what a
    file cannot, UnknownDeviceError for a target that there is not, LoweringError for a program that does not compile for it, and OSError.
    """
    function = captured_function(captured)
    if function is None:
        raise TypeError(f"export_step takes what torch_xla.compile(function, capture=True) gives, not {captured!r}")
    owner = getattr(captured, "__self__", None)
    programs = [(launch, form) for launch, form in function.programs() if owner is None or (form.leaves and form.leaves[0] is owner)]
    if not programs:
        raise CaptureError(f"{function.name} is not captured yet for this {type(owner).__name__}: call it first, as often as that takes")
    recorder = programs[0][0].recorder
    if any(launch.recorder is not recorder for launch, _ in programs):
        raise CaptureError(f"{function.name} is captured on several devices: export a function for each of them")
    if not isinstance(placement_of(recorder), OneDevice):
        raise CaptureError(
            f"{function.name} is captured for several devices or replicas, and a file holds the program of one: capture and export it in a "
            "process without use_spmd() and without other replicas"
        )
    with recorder.lock:
        try:
            _Export(function.name, recorder, programs, owner is not None, _named(target, recorder)).write(path)
        except CaptureError as error:
            raise CaptureError(f"{function.name} cannot be exported: {error}") from error


def _named(target: str | Target | None, recorder: Recorder) -> Target | None:
    """The target to compile for: of this name, or the one that the step was captured for; None for devices of this process."""
    if isinstance(target, str):
        # Loaded when a target is asked for: `import torch_xla` needs none.
        from xla_core.engine.placement.topologies import target_named

        return target_named(target)
    captured_for = placement_of(recorder).target
    return captured_for if target is None and not captured_for.attached else target


class _Export:
    """Builds one file. bound: the function is a bound method, whose object is no argument in the file; target: to compile for."""

    def __init__(
        self, name: str, recorder: Recorder, captured_forms: list[tuple[Launch, Form]], bound: bool, target: Target | None
    ) -> None:
        self._name, self._recorder, self._bound, self._target = name, recorder, bound, target
        self._placement = placement_of(recorder) if target is None else OneDevice(target.devices[0], target)
        self._has_values = placement_of(recorder).target.attached
        self._names = Names()
        self._state: dict[str, Aval] = {}
        self._codes: list[bytes] = []
        self._programs = [self._program(captured, form) for captured, form in captured_forms]
        served = [
            json.dumps([program.arguments, *[(str(leaf.tensor), leaf.requires_grad, leaf.value) for leaf in program.leaves]])
            for program in self._programs
        ]
        if len(set(served)) < len(served):
            raise CaptureError(
                "several of its programs take the same arguments, because it was called in several modes (no_grad, autocast, default "
                "dtypes), or with views: capture a function for each"
            )

    def _program(self, captured: Launch, form: Form) -> StoredProgram:
        leaves, nest = self._arguments(form)
        _refuse_python(captured.recorded)
        _refuse_stale(captured, form)
        program = CapturedProgram(captured)
        recorded, names = program.recorded, self._names.of_program(program.recorded)
        context = self._placement.context
        if context.platform in LIMITS:
            limits.check(program.graph, context.platform)
        flat = program.flat(context)
        symbols = _named_numbers(captured, names)
        numbers = formulas.formulas_of(symbols, flat.numbers, recorded.comparisons)
        inputs = [self._slot(source, aval, names) for source, aval in flat.inputs]
        inputs += [Slot(Kind.NUMBERS, Tensor("float64", "float64", (len(flat.numbers),)))] if flat.numbers else []
        inputs += [Slot(Kind.SEEDS, Tensor("uint32", "uint32", (flat.draws, 2)))] if flat.draws else []
        written = [self._slot(source, aval, names) for source, aval in flat.written]
        # Only state is donated: arguments are the caller's.
        donated = tuple([index for index, slot in enumerate(inputs) if slot.kind is Kind.STATE and slot in written])
        self._codes.append(_serialized(flat, inputs, donated, lowering_platform(self._placement.device)))
        returned = list(self._returned(program, flat))
        return StoredProgram(
            code=Part(0, 0, ""),
            platforms=(context.platform,),
            arguments=nest,
            leaves=tuple(leaves),
            inputs=tuple(inputs),
            outputs=(*[Slot(Kind.RESULT, _tensor(aval), number=index) for index, aval in enumerate(flat.results)], *written),
            donated=donated,
            returned=_nest(recorded.returned_as(list(range(len(returned)))), "what it returns is")[1],
            results=tuple(returned),
            formulas=numbers,
            counts=tuple(
                CountedNumbers(tuple([names.count(tensor, count.now) for tensor in count.tensors]), count.advance)
                for count in captured.counts
            ),
            draws=flat.draws,
            steps=recorded.steps,
        )

    def _arguments(self, form: Form) -> tuple[list[Leaf], Any]:
        args, kwargs = tree_unflatten(list(range(len(form.leaves))), form.tree)
        order, nest = _nest((args[1:] if self._bound else args, kwargs), "its arguments are")
        return [_leaf(form.leaves[leaf_index], index) for index, leaf_index in enumerate(order)], nest

    def _slot(self, source: Source, aval: Aval, names: ProgramNames) -> Slot:
        if isinstance(source, Argument):
            return Slot(Kind.ARGUMENT, _tensor(aval), number=source.index)
        name = names.of_state(source)
        if self._state.setdefault(name, aval) is not aval:
            raise CaptureError(f"{name} is {self._state[name]} in one place and {aval} in another: state must keep its shape and dtype")
        return Slot(Kind.STATE, _tensor(aval), name)

    def _returned(self, program: CapturedProgram, flat: Flat) -> Iterator[Returned]:
        results = iter(range(len(flat.results)))
        for index, item in enumerate(program.recorded.returned):
            if isinstance(item, Computed):
                raise CaptureError("it returns a number that changes from call to call: return it as a tensor of the device")
            if isinstance(item, Constant):
                yield Returned(Kind.CONSTANT, 0, nesting.encode(item.value))
            elif isinstance(item, Existing) and item.index is not None:
                yield Returned(Kind.ARGUMENT, item.index, None)
            elif isinstance(item, ArgumentItself):
                raise CaptureError("it returns the object whose method it is: return tensors, numbers and texts")
            elif program.shown[index] is not None:
                yield Returned(Kind.RESULT, next(results), None)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, and before it the one with its executables, if there is a target to compile for."""
        if self._target is not None:
            compiled = [step_executables.compile_for(self._target, code, self._name) for code in self._codes]
            step_executables.write(path, self._target, self._codes, compiled)
        state = [(aval, self._value(name, aval)) for name, aval in self._state.items()] if self._has_values else []
        sizes = [aval.nbytes for aval, _ in state] + [len(code) for code in self._codes]

        def contents() -> Iterator[bytes | memoryview]:
            for _, array in state:
                yield np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8).data
            yield from self._codes

        step_file.write(path, STEP, sizes, contents(), self._description)

    def _value(self, name: str, aval: Aval) -> jax.Array:
        storage = self._names.storages.get(name)
        if storage is not None:
            return buffer_of(view_of(storage, None))
        gradient = self._names.gradients[name].grad
        if gradient is None:  # made by the next call
            return jax.numpy.zeros(aval.shape, aval.physical)
        return buffer_of(view_of(ours(gradient)._storage, None))

    def _description(self, parts: Sequence[Part]) -> Description:
        codes = parts[-len(self._codes) :]
        values = dict(zip(self._state, parts if self._has_values else (), strict=False))
        return Description(
            format_version=1 if self._has_values or not self._state else VERSION,
            name=self._name,
            stablehlo=stablehlo_version(),
            writer={"xla-core": __version__, "jax": jax.__version__, "torch": str(torch.__version__)},
            state={name: StoredState(_tensor(aval), values.get(name)) for name, aval in self._state.items()},
            numbers=self._names.numbers,
            random_state=self._recorder.seed,
            programs=tuple([replace(program, code=code) for program, code in zip(self._programs, codes, strict=True)]),
            compiled_for="" if self._target is None else self._target.name,
        )


def _tensor(aval: Aval) -> Tensor:
    return Tensor(str(aval.dtype).removeprefix("torch."), str(aval.physical), aval.shape)


def _nest(nested: Any, subject: str) -> tuple[list[int], Any]:
    """Flatten a nesting of the indices of leaves."""
    try:
        leaves, nest = nesting.flatten(nested)
    except (TypeError, ValueError) as error:
        raise CaptureError(f"{subject} nested in a way that files do not have: {error}") from error
    other = next((type(leaf).__name__ for leaf in leaves if type(leaf) is not int), None)
    if other is not None:
        raise CaptureError(f"{subject} nested in a way that files do not have: a {other}; take tuples, lists and dicts")
    return leaves, nest


def _leaf(item: Any, index: int) -> Leaf:
    """Describe an argument. index: of the argument, for messages."""
    if isinstance(item, TensorForm):
        if item.view is not None:
            raise CaptureError(
                f"argument {index} was a view of shape {list(item.view.aval.shape)} of data of shape {list(item.aval.shape)}: capture it "
                "with a tensor of its own, from clone()"
            )
        return Leaf(Kind.ARGUMENT, _tensor(item.aval), item.requires_grad, item.same_as, None)
    try:
        return Leaf(Kind.CONSTANT, None, False, 0, nesting.encode(item))
    except TypeError:
        raise CaptureError(
            f"argument {index} is a {type(item).__name__}: give tensors and numbers, in tuples, lists and dicts, and let the function find "
            "other objects as its own variables"
        ) from None


def _refuse_python(recorded: Recorded) -> None:
    """Raise CaptureError if a call takes or changes what is kept in Python, which no file holds."""
    if recorded.passed:
        raise CaptureError(
            f"it takes {', '.join(recorded.passed)} from Python, which differs between calls: give that as an argument, or keep it in a "
            "tensor on the device"
        )
    reads = {} if recorded.objects is None else recorded.objects.reads
    changed = [reads[place.key].name for place in recorded.places if place.key in reads and reads[place.key].read]
    changed += ["a dict or list among its arguments" for place in recorded.places if isinstance(place, Within)]
    if any(isinstance(origin, Zeros) for _, origin in recorded.writes):
        raise CaptureError("it leaves zeros in a tensor, such as a gradient: set that to zero at the beginning of the step, not at its end")
    if recorded.required:
        raise CaptureError("it sets requires_grad of an argument: take x.detach().requires_grad_() inside, which is another tensor")
    if changed:
        raise CaptureError(f"it changes {', '.join(changed)} in Python: keep that in a tensor on the device")


def _refuse_stale(captured: Launch, form: Form) -> None:
    """Raise CaptureError if a call would not launch the captured program."""
    recorder = captured.recorder
    values = [source.storage.value for source in dict.fromkeys(captured.recorded.sources) if isinstance(source, State)]
    compute(values)
    avals = [leaf.aval for leaf in form.leaves if isinstance(leaf, TensorForm)]
    arguments = Arguments()
    with jax.enable_x64(True):
        for aval in avals:
            storage = Storage()
            storage.value = buffer_value(recorder, aval, jax.numpy.zeros(aval.shape, aval.physical))
            arguments.storages.append(storage)
    if captured.ready(arguments) is None:
        changed = captured.guards.changed()
        reason = f"{changed} is another one" if changed else "parameters, gradients, settings or numbers are others"
        raise CaptureError(
            f"{reason} than when it was captured for {', '.join(map(str, avals)) or 'no tensors'}: call it until it is captured again, and "
            "export it right then"
        )


def _named_numbers(captured: Launch, names: ProgramNames) -> dict[Symbol, str]:
    """Name hyperparameters and step counts, and note their present values."""
    now = {symbol: value for stepped in captured.recorded.stepped for symbol, value in hyperparameters(stepped.optimizer).items()}
    named = {symbol: names.hyperparameter(symbol, now[symbol]) for symbol in captured.recorded.hyperparameters}
    for count in captured.counts:
        if count.symbol in named:
            raise CaptureError(
                "the step counts of an optimizer are equal, but not all go on in this call: some parameters had no gradient. Export a step "
                "in which all have one"
            )
        named[count.symbol] = names.count(count.tensors[0], count.now)
    return named


def _serialized(flat: Flat, inputs: list[Slot], donated: tuple[int, ...], platform: str) -> bytes:
    """A function over these inputs as a StableHLO artifact. Raises CaptureError if it calls Python."""
    structs: list[Any] = [jax.ShapeDtypeStruct(slot.tensor.shape, np.dtype(slot.tensor.stored)) for slot in inputs]
    with jax.enable_x64(True):
        function = jax.jit(flat.run, keep_unused=True, donate_argnums=donated)
        lowered = function.trace(*structs).lower(lowering_platforms=(platform,))
    code = bytes_of(lowered)
    try:
        check_code(code)
    except ValueError:
        lines = sorted(set(re.findall(r"\[([^\]/]*:\d+)\]/[^\"/]*callback", str(lowered.as_text(debug_info=True)))))
        raise CaptureError(
            f"it calls Python at {', '.join(lines) or 'some operation'}, which no file holds: leave that to behind the call"
        ) from None
    return code

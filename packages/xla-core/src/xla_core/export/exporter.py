"""A program of `torch.export` as StableHLO: traced lazily on an xla device, never run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind

from xla_core._compat import OpOverload, tree_flatten, tree_leaves, tree_map
from xla_core.api.conversion import plain
from xla_core.api.step_closures import stand_in_by
from xla_core.errors import UnsupportedOperationError
from xla_core.export.bundle import (
    InputLocation,
    StableHLOFunc,
    StableHLOFunctionMeta,
    StableHLOGraphModule,
    StableHLOModelBundle,
    VariableSignature,
    spec_text,
)
from xla_core.export.custom_call import extract_custom_call_outputs_shape_dtype, stablehlo_custom_call
from xla_core.export.stablehlo import Program, bytes_of, lower, pending_program, text_of
from xla_core.frontend.plain import ours, tensor_behind
from xla_core.frontend.values import value_of
from xla_core.ir.aval import Aval
from xla_core.ir.pending_graph import PendingGraph
from xla_core.runtime.client import current_recorder
from xla_core.runtime.sync import forbid_reads
from xla_core.runtime.transfer import to_numpy


@dataclass(slots=True)
class StableHLOExportOptions:
    """Options of an export; they are read when it is made, and may be assigned before.

    override_tracing_arguments, override_tracing_kwargs: inputs to trace with, in place of the exported program's examples.
    save_weights: write `data/` when saving. export_weights: keep weights in the bundle; off, `state_dict` is empty and its owner fills it
        before a call. include_human_readable_text: keep the module's text beside the bytecode.
    inline_all_constant: put constant tensors into the module; else they are inputs, kept in `constants/`.
    custom_ops_allowed_in_graph: namespaces of torch's custom operations, or their names, that become custom calls of that name.
    export_node_metadata: must stay off; it is not supported.
    """

    override_tracing_arguments: tuple[Any, ...] | None = None
    override_tracing_kwargs: dict[str, Any] | None = None
    save_weights: bool = True
    custom_ops_allowed_in_graph: frozenset[str] | set[str] = frozenset()
    include_human_readable_text: bool = True
    export_node_metadata: bool = False
    inline_all_constant: bool = True
    export_weights: bool = True

    def check(self) -> None:
        """Raise UnsupportedOperationError for options that are not supported."""
        if self.export_node_metadata:
            raise UnsupportedOperationError("export_node_metadata is not supported: XLA_HLO_DEBUG=1 puts the user's lines into the module")


class XLAExportInterpreter(torch.fx.Interpreter):
    """Runs an exported graph with everything it creates on an xla device.

    custom_ops_allowed_in_graph: namespaces, or names such as `mine::op`, of operations that become custom calls of their name.
    gm_serializer: accepted for compatibility.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        device: torch.device,
        custom_ops_allowed_in_graph: frozenset[str] | set[str] = frozenset(),
        gm_serializer: Any = None,
    ) -> None:
        super().__init__(module)
        self._device = device
        self._custom = custom_ops_allowed_in_graph

    def run_node(self, n: torch.fx.Node) -> Any:
        """As fx; a custom call for an operation that is allowed as one."""
        target = n.target
        if isinstance(target, OpOverload) and not self._custom.isdisjoint({target.namespace, target._schema.name}):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            tensors = [item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
            shapes, dtypes = extract_custom_call_outputs_shape_dtype(n)
            return stablehlo_custom_call(tensors, target._schema.name, shapes, dtypes)
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten._assert_tensor_metadata.default:
            return None  # says where the example inputs were
        args, kwargs = tree_map(lambda item: self._device if isinstance(item, torch.device) else item, (args, kwargs))
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        found = super().get_attr(target, args, kwargs)
        return found.to(self._device) if isinstance(found, torch.Tensor) else found


@dataclass(slots=True)
class _Traced:
    """Inputs on the device with where they come from, and the flat results."""

    inputs: list[tuple[InputLocation, torch.Tensor]]
    outputs: list[torch.Tensor]
    state_dict: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)


def exported_program_to_stablehlo(exported_model: ExportedProgram, options: StableHLOExportOptions | None = None) -> StableHLOGraphModule:
    """The program as a callable StableHLO module. Raises UnsupportedOperationError for dynamic shapes and for mutated inputs."""
    chosen = options or StableHLOExportOptions()
    chosen.check()
    arguments, spec = tree_flatten(_examples(exported_model, chosen))
    with torch.no_grad(), _apart():
        traced = _trace(exported_model, arguments, chosen)
        found = pending_program(traced.outputs)
    function, constants = _function(found, traced, chosen, spec_text(spec), _result_spec(exported_model))
    state = traced.state_dict if chosen.export_weights else {}
    return StableHLOGraphModule(StableHLOModelBundle(state, constants, [function]))


@contextmanager
def _apart() -> Iterator[None]:
    """Record on a pending graph of its own, where nothing may be read: a value read would become a constant of the program."""
    recorder = current_recorder()
    with recorder.lock:
        before, recorder.pending_graph = recorder.pending_graph, PendingGraph()
        reads = forbid_reads(
            "exporting needs a value while tracing: the program branches on data, or runs an operation without XLA lowering on the CPU"
        )
        stand_in = stand_in_by(_refuse_collective)
        try:
            yield
        finally:
            stand_in_by(stand_in)
            forbid_reads(reads)
            recorder.pending_graph = before


def _refuse_collective(token: Any) -> Any:
    raise UnsupportedOperationError("a program with collectives cannot be exported: it runs among the replicas of a job only")


def save_as_stablehlo(exported_model: ExportedProgram, stablehlo_dir: str, options: StableHLOExportOptions | None = None) -> None:
    """Write a program of `torch.export` as StableHLO into the folder `stablehlo_dir`, which `StableHLOGraphModule.load` reads.

    Weights go there too, unless `options.save_weights` is off. Raises UnsupportedOperationError for dynamic shapes and for mutated
    inputs, ValueError for a program without example inputs where the options give none.
    """
    chosen = options or StableHLOExportOptions()
    exported_program_to_stablehlo(exported_model, chosen).save(stablehlo_dir, chosen.save_weights)


def save_torch_model_as_stablehlo(
    torchmodel: torch.nn.Module, args: tuple[Any, ...], path: str, options: StableHLOExportOptions | None = None
) -> None:
    """Export a module with `torch.export`, for arguments of the shapes and dtypes of `args`, and write it into the folder `path`.

    As `save_as_stablehlo`, whose options and errors these are.
    """
    save_as_stablehlo(torch.export.export(torchmodel, args), path, options)


def _examples(exported: ExportedProgram, options: StableHLOExportOptions) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if options.override_tracing_arguments is not None:
        return options.override_tracing_arguments, options.override_tracing_kwargs or {}
    if exported.example_inputs is None:
        raise ValueError("the exported program has no example inputs: give override_tracing_arguments")
    args, kwargs = exported.example_inputs
    return tuple(args), dict(kwargs)


def _result_spec(exported: ExportedProgram) -> str | None:
    spec = exported.call_spec.out_spec
    return None if spec is None else spec_text(spec)


def _trace(exported: ExportedProgram, arguments: Sequence[Any], options: StableHLOExportOptions) -> _Traced:
    _refuse_dynamic(exported)
    device = current_recorder().device
    traced = _Traced([], [])
    placed: list[Any] = []
    position = 0
    for spec in exported.graph_signature.input_specs:
        location, tensor = _source(exported, spec, arguments, position)
        position += spec.kind is InputKind.USER_INPUT
        if not isinstance(tensor, torch.Tensor):
            placed.append(tensor)
            continue
        on_device = tensor.detach().to(device)
        placed.append(on_device)
        if location is not None:
            traced.inputs.append((location, on_device))
        if location is not None and location.name:
            traced.state_dict[location.name] = to_numpy(tensor)
    before = [value_of(plain(tensor)) for _, tensor in traced.inputs]
    interpreter = XLAExportInterpreter(exported.graph_module, device, options.custom_ops_allowed_in_graph)
    results = interpreter.run(*placed, enable_io_processing=False)
    for (location, tensor), value in zip(traced.inputs, before, strict=True):
        if value_of(plain(tensor)) is not value:
            raise _changed(location.name or f"argument {location.position}")
    traced.outputs = [_result(item, device) for item in results]
    return traced


def _result(item: Any, device: torch.device) -> torch.Tensor:
    return item if isinstance(item, torch.Tensor) else torch.tensor(item, device=device)


def _source(exported: ExportedProgram, spec: InputSpec, arguments: Sequence[Any], position: int) -> tuple[InputLocation | None, Any]:
    """The location of a graph's input, and its value."""
    target = str(spec.target)
    if spec.kind is InputKind.USER_INPUT:
        return InputLocation.input_arg(position), arguments[position]
    if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and target in exported.state_dict:
        return InputLocation.parameter(target), exported.state_dict[target]
    if spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
        return None, exported.constants[target]
    raise UnsupportedOperationError(f"{spec.kind.name} inputs cannot be exported: pass tensors and numbers only")


def _refuse_dynamic(exported: ExportedProgram) -> None:
    if exported.range_constraints:
        raise UnsupportedOperationError(f"dynamic shapes {list(exported.range_constraints)} cannot be exported: export with static shapes")
    for spec in exported.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise _changed(str(spec.target or spec.arg))


def _changed(name: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(f"the program changes {name}: export a module in eval() mode that writes to no buffer or input")


def _function(
    found: Program, traced: _Traced, options: StableHLOExportOptions, input_spec: str, output_spec: str | None
) -> tuple[StableHLOFunc, list[np.ndarray[Any, Any]]]:
    """The lowered function, and the constants that it takes."""
    known = {id(value_of(ours(tensor)).buffer): location for location, tensor in traced.inputs if tensor_behind(tensor) is not None}
    avals = [entry for entry in found.graph.entries if type(entry) is Aval]
    constants: list[np.ndarray[Any, Any]] = []
    locations: list[InputLocation] = []
    inlined: set[int] = set()
    for number, buffer in enumerate(found.inputs.buffers):
        if id(buffer) in known:
            locations.append(known[id(buffer)])
        elif options.inline_all_constant:
            inlined.add(number)
        else:
            locations.append(InputLocation.constant(len(constants)))
            constants.append(np.asarray(buffer))
    lowered = lower(found, inline_numbers=True, inline_buffers=inlined)
    unused = [(location, _signature(tensor)) for location, tensor in traced.inputs if location not in locations]
    meta = StableHLOFunctionMeta(
        name="forward",
        stablehlo_version=_version(),
        input_signature=[_aval_signature(aval) for number, aval in enumerate(avals) if number not in inlined],
        output_signature=[_signature(tensor) for tensor in traced.outputs],
        input_locations=locations,
        unused_inputs=unused,
        input_pytree_spec=input_spec,
        output_pytree_spec=output_spec,
    )
    text = text_of(lowered) if options.include_human_readable_text else None
    return StableHLOFunc(meta, bytes_of(lowered), text), constants


def _version() -> str:
    from jax.extend.mlir.dialects import stablehlo as dialect  # slow to import

    return str(dialect.get_current_version())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _aval_signature(aval: Aval) -> VariableSignature:
    return VariableSignature(list(aval.shape), _name(aval.dtype))


def _signature(tensor: torch.Tensor) -> VariableSignature:
    return VariableSignature(list(tensor.shape), _name(tensor.dtype))

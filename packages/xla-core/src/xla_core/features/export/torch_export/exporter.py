"""A program of `torch.export` as StableHLO: traced lazily on an xla device, never run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import OpOverload, tree_flatten, tree_leaves, tree_map
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.pending_graph import PendingGraph
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.runtime.sync import forbid_reads
from xla_core.engine.tracing.tokens import stand_in_by
from xla_core.features.export.custom_call import extract_custom_call_outputs_shape_dtype, stablehlo_custom_call
from xla_core.features.export.stablehlo import bytes_of, lower, stablehlo_version, text_of
from xla_core.features.export.torch_export import pytree_text
from xla_core.features.export.torch_export.bundle import StableHLOGraphModule
from xla_core.features.export.torch_export.meta import InputLocation, StableHLOFunctionMeta, VariableSignature
from xla_core.features.export.torch_export.model_bundle import StableHLOFunc, StableHLOModelBundle
from xla_core.features.export.torch_export.open_method import OpenMethod, open_function, open_method
from xla_core.features.export.torch_export.programs import check_methods, refuse_data_dependent, without_autocast
from xla_core.features.export.torch_export.symbolic_dims import open_symbols
from xla_core.features.export.torch_export.traced import State, Traced, place_of


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
        if _makes_tensors(target) and not any(isinstance(item, torch.Tensor) for item in tree_leaves((args, kwargs))):
            kwargs = {**kwargs, "device": self._device}  # it may say nothing of devices
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        found = super().get_attr(target, args, kwargs)
        if isinstance(found, torch.fx.GraphModule):  # of a branch, a loop, a region
            return XLAExportInterpreter(found, self._device, self._custom).run
        return found.to(self._device) if isinstance(found, torch.Tensor) else found


def _makes_tensors(target: Any) -> bool:
    return isinstance(target, OpOverload) and any(each.name == "device" and each.kwarg_only for each in target._schema.arguments)


def exported_program_to_stablehlo(exported_model: ExportedProgram, options: StableHLOExportOptions | None = None) -> StableHLOGraphModule:
    """The program as a callable StableHLO module with the method `forward`.

    Sizes that the program leaves open (`torch.export.Dim`) stay open: the module is dynamic StableHLO; results that are sizes are tensors.
    Raises UnsupportedOperationError for shapes or Python numbers that depend on data, and for operations that cannot have open sizes.
    """
    return exported_programs_to_stablehlo({"forward": exported_model}, options)


def exported_programs_to_stablehlo(
    programs: Mapping[str, ExportedProgram], options: StableHLOExportOptions | None = None
) -> StableHLOGraphModule:
    """Programs of one module as the methods of one callable StableHLO module, which holds the weights and buffers that they share once.

    programs: by the method's name. Raises as `exported_program_to_stablehlo`; ValueError for names that cannot be methods, programs that
    have different tensors of one name, and options with tracing arguments for several programs.
    """
    chosen = options or StableHLOExportOptions()
    chosen.check()
    check_methods(programs, chosen.override_tracing_arguments is not None)
    state = State()
    methods = {name: _method(program, chosen, state) for name, program in programs.items()}
    written = {location.name for method in methods.values() for location, _ in method.written if location.name}
    constants: list[np.ndarray[Any, Any]] = []
    functions = [_function(name, method, written, chosen, constants) for name, method in methods.items()]
    kept = [each.location.name for method in methods.values() for each in method.variables(written) if each.location.name]
    arrays = state.arrays(kept, written) if chosen.export_weights else {}
    return StableHLOGraphModule(StableHLOModelBundle(arrays, constants, functions))


@contextmanager
def _apart() -> Iterator[None]:
    """Record on a pending graph of its own, where nothing may be read: a value read would become a constant of the program."""
    recorder = current_recorder()
    with recorder.lock:
        before, recorder.pending_graph = (recorder.pending_graph, recorder.seed), PendingGraph()
        reads = forbid_reads(
            "exporting needs a value while tracing: the program branches on data, or runs an operation without XLA lowering on the CPU"
        )
        stand_in = stand_in_by(_refuse_collective)
        try:
            yield
        finally:
            stand_in_by(stand_in)
            forbid_reads(reads)
            recorder.pending_graph, recorder.seed = before


def _refuse_collective(token: Any) -> Any:
    raise UnsupportedOperationError("a program with collectives cannot be exported: it runs among the replicas of a job only")


def save_as_stablehlo(exported_model: ExportedProgram, stablehlo_dir: str, options: StableHLOExportOptions | None = None) -> None:
    """Write a program of `torch.export` as StableHLO into the folder `stablehlo_dir`, which `StableHLOGraphModule.load` reads.

    Weights go there too, unless `options.save_weights` is off. Raises as `exported_program_to_stablehlo`, and ValueError for a program
    without example inputs where the options give none.
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
    return None if spec is None else pytree_text.dumps(spec, "a result")


def _method(program: ExportedProgram, options: StableHLOExportOptions, state: State) -> Traced | OpenMethod:
    refuse_data_dependent(program)
    state.name_constants(program)
    if open_symbols(program):
        arguments, spec = tree_flatten(_examples(program, options))
        return open_method(program, arguments, pytree_text.dumps(spec, "an argument"), _result_spec(program), state)
    return _trace(without_autocast(program), options, state)


def _trace(exported: ExportedProgram, options: StableHLOExportOptions, state: State) -> Traced:
    arguments, spec = tree_flatten(_examples(exported, options))
    device = current_recorder().device
    traced = Traced(state, pytree_text.dumps(spec, "an argument"), _result_spec(exported))
    wanted = [spec for spec in exported.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    if len(wanted) != len(arguments):
        raise ValueError(f"the exported program takes {len(wanted)} arguments, flat, and {len(arguments)} are given to trace it with")
    interpreter = XLAExportInterpreter(exported.graph_module, device, options.custom_ops_allowed_in_graph)
    with torch.no_grad():
        given = enumerate(arguments)
        placed = [_placed(traced, exported, input_spec, given, device) for input_spec in exported.graph_signature.input_specs]
        with _apart():
            traced.take(exported, interpreter.run(*placed, enable_io_processing=False), device)
    return traced


def _placed(traced: Traced, exported: ExportedProgram, spec: InputSpec, given: Iterator[tuple[int, Any]], device: torch.device) -> Any:
    """What the graph is to run on for one of its inputs; takes an argument off `given` if it is one."""
    if spec.kind is InputKind.USER_INPUT:
        return traced.place_argument(*next(given), device)
    if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
        return traced.place_state(exported, spec, device)
    raise UnsupportedOperationError(f"{spec.kind.name} inputs cannot be exported: pass tensors and numbers only")


def _function(
    name: str, traced: Traced | OpenMethod, written: set[str], options: StableHLOExportOptions, constants: list[np.ndarray[Any, Any]]
) -> StableHLOFunc:
    """The lowered function. written: what any method changes of the state; constants: takes those that are not put into the module."""
    if isinstance(traced, OpenMethod):
        return open_function(name, traced, written, options.inline_all_constant, options.include_human_readable_text, constants)
    found, variables = traced.program, traced.variables(written)
    known = {id(each.value.buffer): each.location for each in variables}
    avals = [entry for entry in found.graph.entries if type(entry) is Aval]
    locations: list[InputLocation] = []
    inlined: set[int] = set()
    for number, buffer in enumerate(found.inputs.buffers):
        if id(buffer) in known:
            locations.append(known[id(buffer)])
        elif options.inline_all_constant:
            inlined.add(number)
        else:
            locations.append(InputLocation.constant(place_of(np.asarray(buffer), constants)))
    signatures = [VariableSignature.of(aval.shape, aval.dtype) for number, aval in enumerate(avals) if number not in inlined]
    if found.inputs.seeds:
        locations.append(InputLocation.seeds())
        signatures.append(VariableSignature([len(found.inputs.seeds), 2], "uint32"))
    lowered = lower(found, inline_numbers=True, inline_buffers=inlined)
    meta = StableHLOFunctionMeta(
        name=name,
        stablehlo_version=stablehlo_version(),
        input_signature=signatures,
        output_signature=[
            VariableSignature.of(tensor.shape, tensor.dtype) for tensor in (*traced.outputs, *[tensor for _, tensor in traced.written])
        ],
        input_locations=locations,
        unused_inputs=[
            (each.location, VariableSignature.of(each.tensor.shape, each.tensor.dtype))
            for each in variables
            if each.location not in locations
        ],
        input_pytree_spec=traced.input_spec,
        output_pytree_spec=traced.output_spec,
        format_version=traced.format_version,
        written=[location for location, _ in traced.written],
        constant_inputs=traced.constant_inputs,
        constant_outputs=traced.constant_outputs,
    )
    text = text_of(lowered) if options.include_human_readable_text else None
    return StableHLOFunc(meta, bytes_of(lowered), text)

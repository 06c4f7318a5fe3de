"""Exports programs of `torch.export` as StableHLO with their weights, without running them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from xla_core.base.budgets import budget
from xla_core.base.private_torch import tree_flatten
from xla_core.features.export.torch_export import pytree_text
from xla_core.features.export.torch_export.bundle import StableHLOGraphModule
from xla_core.features.export.torch_export.function import function_of
from xla_core.features.export.torch_export.functional import check_methods, refuse_data_dependent
from xla_core.features.export.torch_export.method import Method, method_of
from xla_core.features.export.torch_export.model_bundle import StableHLOModelBundle
from xla_core.features.export.torch_export.options import StableHLOExportOptions
from xla_core.features.export.torch_export.state import ModuleState


@budget(compiles=None, reads=None)
def exported_program_to_stablehlo(exported_model: ExportedProgram, options: StableHLOExportOptions | None = None) -> StableHLOGraphModule:
    """Export a program as a callable StableHLO module with the method `forward`.

    Sizes that the program leaves open (`torch.export.Dim`) stay open: the module is dynamic StableHLO; results that are sizes are tensors.
    Raises UnsupportedOperationError for shapes or Python numbers that depend on data, and for operations that cannot have open sizes.
    """
    return exported_programs_to_stablehlo({"forward": exported_model}, options)


@budget(compiles=None, reads=None)
def exported_programs_to_stablehlo(
    programs: Mapping[str, ExportedProgram], options: StableHLOExportOptions | None = None
) -> StableHLOGraphModule:
    """Export programs of one module as methods of one callable StableHLO module, which has their shared weights and buffers once.

    programs: by the method's name. Raises as `exported_program_to_stablehlo`; ValueError for names that cannot be methods, programs that
    have different tensors of one name, and options with tracing arguments for several programs.
    """
    chosen = options or StableHLOExportOptions()
    chosen.check()
    check_methods(programs, chosen.override_tracing_arguments is not None)
    state = ModuleState()
    methods = {name: _method(program, chosen, state) for name, program in programs.items()}
    written = {location.name for method in methods.values() for location, _ in method.written if location.name}
    constants: list[np.ndarray[Any, Any]] = []
    functions = [function_of(name, method, written, chosen, constants) for name, method in methods.items()]
    kept = [variable.location.name for method in methods.values() for variable in method.variables(written) if variable.location.name]
    arrays = state.arrays(kept, written) if chosen.export_weights else {}
    return StableHLOGraphModule(StableHLOModelBundle(arrays, constants, functions))


@budget(compiles=None, reads=None)
def save_as_stablehlo(exported_model: ExportedProgram, stablehlo_dir: str, options: StableHLOExportOptions | None = None) -> None:
    """Write a program of `torch.export` as StableHLO into the folder `stablehlo_dir`, which `StableHLOGraphModule.load` reads.

    Weights go there too, unless `options.save_weights` is off. Raises as `exported_program_to_stablehlo`, and ValueError if neither the
    program nor the options have example inputs.
    """
    chosen = options or StableHLOExportOptions()
    exported_program_to_stablehlo(exported_model, chosen).save(stablehlo_dir, chosen.save_weights)


@budget(compiles=None, reads=None)
def save_torch_model_as_stablehlo(
    torchmodel: torch.nn.Module, args: tuple[Any, ...], path: str, options: StableHLOExportOptions | None = None
) -> None:
    """Export a module with `torch.export`, for arguments of the shapes and dtypes of `args`, and write it into the folder `path`.

    Options and errors are those of `save_as_stablehlo`.
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


def _method(program: ExportedProgram, options: StableHLOExportOptions, state: ModuleState) -> Method:
    refuse_data_dependent(program)
    arguments, spec = tree_flatten(_examples(program, options))
    nested = pytree_text.dumps(spec, "an argument")
    return method_of(program, arguments, nested, _result_spec(program), options.custom_ops_allowed_in_graph, state)

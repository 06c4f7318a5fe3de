"""Programs of `torch.export` as StableHLO."""

from __future__ import annotations

from xla_core.features.export.steps.step_export import export_step
from xla_core.features.export.steps.step_load import ExportedStep, load_step
from xla_core.features.export.torch_export.bundle import StableHLOGraphModule
from xla_core.features.export.torch_export.device_interpreter import XLAExportInterpreter
from xla_core.features.export.torch_export.exporter import (
    exported_program_to_stablehlo,
    exported_programs_to_stablehlo,
    save_as_stablehlo,
    save_torch_model_as_stablehlo,
)
from xla_core.features.export.torch_export.meta import (
    InputLocation,
    StableHLOFunctionMeta,
    StableHLOJSONSerializer,
    VariableSignature,
    VariableType,
    stablehlo_obj_hook,
)
from xla_core.features.export.torch_export.model_bundle import StableHLOFunc, StableHLOModelBundle
from xla_core.features.export.torch_export.options import StableHLOExportOptions

__all__ = [
    "ExportedStep",
    "InputLocation",
    "StableHLOExportOptions",
    "StableHLOFunc",
    "StableHLOFunctionMeta",
    "StableHLOGraphModule",
    "StableHLOJSONSerializer",
    "StableHLOModelBundle",
    "VariableSignature",
    "VariableType",
    "XLAExportInterpreter",
    "export_step",
    "exported_program_to_stablehlo",
    "exported_programs_to_stablehlo",
    "load_step",
    "save_as_stablehlo",
    "save_torch_model_as_stablehlo",
    "stablehlo_obj_hook",
]

"""Programs of `torch.export` and captured steps as StableHLO. Each part is loaded when one of its names is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
_PARTS = {
    "steps.step_export": "export_step",
    "steps.step_load": "ExportedStep load_step",
    "torch_export.bundle": "StableHLOGraphModule",
    "torch_export.device_interpreter": "XLAExportInterpreter",
    "torch_export.exporter": (
        "exported_program_to_stablehlo exported_programs_to_stablehlo save_as_stablehlo save_torch_model_as_stablehlo"
    ),
    "torch_export.meta": ("InputLocation StableHLOFunctionMeta StableHLOJSONSerializer VariableSignature VariableType stablehlo_obj_hook"),
    "torch_export.model_bundle": "StableHLOFunc StableHLOModelBundle",
    "torch_export.options": "StableHLOExportOptions",
}


def __getattr__(name: str) -> Any:
    part = next((part for part, names in _PARTS.items() if name in names.split()), None)
    if part is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"xla_core.features.export.{part}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]

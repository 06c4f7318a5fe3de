"""Programs of `torch.export` as StableHLO."""

from __future__ import annotations

from xla_core.facade.export import (
    StableHLOExportOptions,
    exported_program_to_stablehlo,
    save_as_stablehlo,
    save_torch_model_as_stablehlo,
)
from xla_core.facade.export_bundle import (
    InputLocation,
    StableHLOFunc,
    StableHLOFunctionMeta,
    StableHLOGraphModule,
    StableHLOModelBundle,
    VariableSignature,
    VariableType,
)

__all__ = [
    "InputLocation",
    "StableHLOExportOptions",
    "StableHLOFunc",
    "StableHLOFunctionMeta",
    "StableHLOGraphModule",
    "StableHLOModelBundle",
    "VariableSignature",
    "VariableType",
    "exported_program_to_stablehlo",
    "save_as_stablehlo",
    "save_torch_model_as_stablehlo",
]

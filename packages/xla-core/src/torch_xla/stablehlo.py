"""Programs of `torch.export` as StableHLO."""

from xla_core.features.export.steps.step_export import export_step as export_step
from xla_core.features.export.steps.step_load import ExportedStep as ExportedStep
from xla_core.features.export.steps.step_load import load_step as load_step
from xla_core.features.export.torch_export.bundle import StableHLOGraphModule as StableHLOGraphModule
from xla_core.features.export.torch_export.exporter import StableHLOExportOptions as StableHLOExportOptions
from xla_core.features.export.torch_export.exporter import XLAExportInterpreter as XLAExportInterpreter
from xla_core.features.export.torch_export.exporter import exported_program_to_stablehlo as exported_program_to_stablehlo
from xla_core.features.export.torch_export.exporter import exported_programs_to_stablehlo as exported_programs_to_stablehlo
from xla_core.features.export.torch_export.exporter import save_as_stablehlo as save_as_stablehlo
from xla_core.features.export.torch_export.exporter import save_torch_model_as_stablehlo as save_torch_model_as_stablehlo
from xla_core.features.export.torch_export.meta import InputLocation as InputLocation
from xla_core.features.export.torch_export.meta import StableHLOFunctionMeta as StableHLOFunctionMeta
from xla_core.features.export.torch_export.meta import StableHLOJSONSerializer as StableHLOJSONSerializer
from xla_core.features.export.torch_export.meta import VariableSignature as VariableSignature
from xla_core.features.export.torch_export.meta import VariableType as VariableType
from xla_core.features.export.torch_export.meta import stablehlo_obj_hook as stablehlo_obj_hook
from xla_core.features.export.torch_export.model_bundle import StableHLOFunc as StableHLOFunc
from xla_core.features.export.torch_export.model_bundle import StableHLOModelBundle as StableHLOModelBundle

__all__ = [name for name in dir() if not name.startswith("__")]

"""Shows programs as StableHLO, and runs StableHLO."""

from __future__ import annotations

from collections.abc import Sequence

from xla_core.features.export import stablehlo
from xla_core.legacy.xlac.common import Tensors


def _get_stablehlo(tensors: Tensors = (), device: str = "", devices: Sequence[str] = (), emit_bytecode: bool = False) -> str | bytes:
    return stablehlo.get_stablehlo_bytecode(tensors) if emit_bytecode else stablehlo.get_stablehlo(tensors)


_run_stablehlo = stablehlo.run_stablehlo

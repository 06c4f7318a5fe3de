"""Programs as StableHLO, and StableHLO as programs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xla_core.features.export import stablehlo
from xla_core.legacy.xlac.common import Tensors


def _get_stablehlo(tensors: Tensors = (), device: str = "", devices: Sequence[str] = (), emit_bytecode: bool = False) -> str | bytes:
    return stablehlo.get_stablehlo_bytecode(tensors) if emit_bytecode else stablehlo.get_stablehlo(tensors)


def _run_stablehlo(bytecode: bytes, tensors: Tensors) -> list[torch.Tensor]:
    return stablehlo.run_stablehlo(bytecode, tensors)

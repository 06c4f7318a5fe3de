"""Factorisations that are asked to raise where they fail (`check_errors=True`): a value read of their `info`, as on every device."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.base.private_torch import OpOverload
from xla_core.engine.tensor.recorded import recorded
from xla_core.engine.tensor.schema import Handler, short_name

aten = torch.ops.aten
_NAMES = {
    "linalg_cholesky_ex": "linalg.cholesky_ex",
    "linalg_inv_ex": "linalg.inv_ex",
    "linalg_lu_factor_ex": "torch.linalg.lu_factor_ex",
    "_linalg_solve_ex": "torch.linalg.solve_ex",
}
"""What torch's errors call them."""


def _handler(func: OpOverload, name: str) -> Handler:
    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Recorded without it: the CPU, asked whether it takes the call, would raise for the zeros that it is asked with.
        results = recorded(func)(args, {key: value for key, value in kwargs.items() if key != "check_errors"})
        if kwargs.get("check_errors"):
            aten._linalg_check_errors.default(results[-1], name, is_matrix=args[0].dim() == 2)
        return results

    return run


def _overloads(name: str) -> list[OpOverload]:
    packet = getattr(aten, name)
    return [getattr(packet, overload) for overload in packet.overloads()]


HANDLERS: dict[str, Handler] = {short_name(func): _handler(func, name) for packet, name in _NAMES.items() for func in _overloads(packet)}

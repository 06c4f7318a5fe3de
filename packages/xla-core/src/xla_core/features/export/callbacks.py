"""Finds calls of Python in StableHLO. No file may have them: XLA calls the address that the module names, unchecked."""

from __future__ import annotations

import re
from typing import Any

_CALLBACK = re.compile(r"xla_\w*python\w*callback")
_BYTECODE = b"ML\xefR"


def check_code(code: bytes) -> None:
    """Raise ValueError for code that is not a portable artifact of StableHLO, or calls Python."""
    from jax.extend.mlir import ir  # slow to import
    from jax.extend.mlir.dialects import stablehlo as dialect

    if not code.startswith(_BYTECODE):
        raise ValueError(f"it is no artifact of StableHLO: it begins with {code[:8]!r}, not {_BYTECODE!r}")
    if b"custom_call" not in code:  # the bytes have names of operations as they are; names of targets may be written in several ways
        return
    try:
        module = dialect.deserialize_portable_artifact(ir.Context(), code)
    except Exception as error:  # its type has no name in jaxlib
        raise ValueError(f"it is no artifact of StableHLO that this jaxlib reads: {str(error)[:200]}") from error
    targets = sorted({target for target in _targets(module) if _CALLBACK.search(target)})
    if targets:
        raise ValueError(f"it calls Python ({targets[0][:80]}), which no exported program may: export it without callbacks")


def _targets(module: Any) -> list[str]:
    """The targets of a module's custom calls, at any depth."""
    from jax.extend.mlir import ir  # slow to import

    targets: list[str] = []

    def look(operation: Any) -> Any:
        if operation.name == "stablehlo.custom_call":
            targets.append(ir.StringAttr(operation.attributes["call_target_name"]).value)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    return targets

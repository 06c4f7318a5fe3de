"""StableHLO that would call Python, which no file may hold: XLA calls what it finds at the place that the module names, unchecked."""

from __future__ import annotations

import re
from typing import Any

_CALLBACK = re.compile(r"xla_\w*python\w*callback")
_BYTECODE = b"ML\xefR"


def check_code(code: bytes) -> None:
    """Raise ValueError for what is no portable artifact of StableHLO, and for one that calls Python."""
    from jax.extend.mlir import ir  # slow to import
    from jax.extend.mlir.dialects import stablehlo as dialect

    if not code.startswith(_BYTECODE):
        raise ValueError(f"it is no artifact of StableHLO: it begins with {code[:8]!r}, not {_BYTECODE!r}")
    if b"custom_call" not in code:  # names of operations stand in the bytes; those of targets may be written in several ways
        return
    try:
        module = dialect.deserialize_portable_artifact(ir.Context(), code)
    except Exception as error:  # of a type that jaxlib does not name
        raise ValueError(f"it is no artifact of StableHLO that this jaxlib reads: {str(error)[:200]}") from error
    targets = sorted({target for target in _targets(module) if _CALLBACK.search(target)})
    if targets:
        raise ValueError(f"it calls Python ({targets[0][:80]}), which no exported program may: export it without callbacks")


def _targets(module: Any) -> list[str]:
    """Of its custom calls, at any depth."""
    from jax.extend.mlir import ir  # slow to import

    targets: list[str] = []

    def look(operation: Any) -> Any:
        if operation.name == "stablehlo.custom_call":
            targets.append(ir.StringAttr(operation.attributes["call_target_name"]).value)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    return targets

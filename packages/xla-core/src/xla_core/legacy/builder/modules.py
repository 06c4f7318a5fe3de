"""Computations from programs that others have made: HLO modules and StableHLO."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax import export

from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_jax import serialized_hlo
from xla_core.legacy.builder.nodes import XlaComputation
from xla_core.legacy.builder.shapes import structs_of

_BYTECODE = b"ML\xefR"
# How StableHLO writes the types whose names HLO has otherwise.
_TYPES = {"i1": "pred", "complex<f32>": "c64", "complex<f64>": "c128"}


def computation_from_module(name: str, module: bytes | str) -> XlaComputation:
    """The computation of a serialized HloModuleProto, of HLO text, or of StableHLO as text, bytecode or portable artifact.

    It runs inside the recorded program, as any other, and has no gradient. Raises ValueError for what is none of these,
    UnsupportedOperationError for one over dynamic shapes or tokens, and in a backward pass.
    """
    # Slow to import, and only needed here.
    from jax.extend.mlir import ir
    from jax.extend.mlir.dialects import stablehlo

    lowered: Any = jax.jit(lambda: ()).lower().compiler_ir("stablehlo")
    context = lowered.context  # knows all dialects that jax writes
    with context, ir.Location.unknown():
        try:
            parsed = _core_only(ir.Module.parse(_stablehlo(module)))
        except (ValueError, RuntimeError, ir.MLIRError) as error:
            raise ValueError(
                f"computation {name!r} is neither HLO (text, or a serialized HloModuleProto) nor StableHLO: {error}"
            ) from error
        functions = {one.name.value: one for one in parsed.body.operations if one.operation.name == "func.func"}
        if "main" not in functions:
            raise ValueError(f"the module of computation {name!r} has no function `main`, only {sorted(functions)}")
        kind = functions["main"].type
        shapes = [structs_of([_shape(name, one) for one in types]) for types in (kind.inputs, kind.results)]
        artifact = stablehlo.serialize_portable_artifact_str(str(parsed), stablehlo.get_current_version())
    program = _exported(name, artifact, *shapes)

    @jax.custom_vjp
    def run(*arrays: Any) -> Any:
        results = program.call(*arrays)
        return results[0] if len(results) == 1 else tuple(results)

    def refuse(*arrays: Any) -> Any:
        raise UnsupportedOperationError(
            f"computation {name!r} is of a module, which has no gradient: detach its inputs, or export that too"
        )

    run.defvjp(refuse, refuse)
    return XlaComputation(name, shapes[0], run)


def _stablehlo(module: bytes | str) -> Any:
    """The module as text or bytecode of StableHLO."""
    from jax.extend import mlir

    if isinstance(module, str):
        return mlir.hlo_to_stablehlo(serialized_hlo(module)) if module.lstrip().startswith("HloModule") else module
    if not module.startswith(_BYTECODE):
        return module if module.lstrip().startswith(b"module") else mlir.hlo_to_stablehlo(module)
    try:
        return str(mlir.deserialize_portable_artifact(module))
    except ValueError:  # bytecode of this release, which names no version
        return module


def _core_only(module: Any) -> Any:
    """The module without operations of MHLO and CHLO, which artifacts cannot hold: they become what they are made of."""
    from jax.extend.mlir import ir, passmanager
    from jax.extend.mlir.dialects import stablehlo

    stablehlo.register_stablehlo_passes()
    text = module.operation.get_asm(print_generic_op_form=True, assume_verified=True)
    if '"mhlo.' in text:  # what HLO has as operations of its own, and StableHLO has not
        module = ir.Module.parse(text.replace('"mhlo.', '"chlo.'))
    passmanager.PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(module.operation)
    return module


def _shape(name: str, kind: Any) -> dict[str, Any]:
    from jax.extend.mlir import ir

    if not isinstance(kind, ir.RankedTensorType) or not kind.has_static_shape:
        raise UnsupportedOperationError(f"computation {name!r} takes or gives {kind}: make a module of arrays of fixed shapes")
    text = str(kind.element_type)
    written = _TYPES.get(text) or text.replace("ui", "u").lower()
    return {"type": "s" + written[1:] if written.startswith("i") else written, "sizes": list(kind.shape)}


def _exported(name: str, artifact: bytes, ins: Any, outs: Any) -> export.Exported:
    """The program as one that jax exported: that of a function of the same shapes, with the module put in the place of its own."""

    def shaped(*arrays: Any) -> list[Any]:
        return [jax.lax.full(out.shape, 0, out.dtype) for out in outs]

    with jax.enable_x64(True):
        made = export.export(jax.jit(shaped, keep_unused=True))(*ins)
    checks = (export.DisabledSafetyCheck.platform(),)  # a module is for no hardware in particular
    return dataclasses.replace(made, fun_name=name, mlir_module_serialized=artifact, disabled_safety_checks=checks)

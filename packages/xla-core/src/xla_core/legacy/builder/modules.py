"""Make computations from programs made elsewhere: HLO modules and StableHLO."""

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
# HLO's names of the types that StableHLO writes differently.
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
        functions = {op.name.value: op for op in parsed.body.operations if op.operation.name == "func.func"}
        if "main" not in functions:
            raise ValueError(f"the module of computation {name!r} has no function `main`, only {sorted(functions)}")
        signature = functions["main"].type
        shapes = [structs_of([_shape(name, tensor_type) for tensor_type in types]) for types in (signature.inputs, signature.results)]
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
    """Replace operations of MHLO and CHLO, which artifacts cannot hold, by the StableHLO operations that they consist of."""
    from jax.extend.mlir import ir, passmanager
    from jax.extend.mlir.dialects import stablehlo

    stablehlo.register_stablehlo_passes()
    text = module.operation.get_asm(print_generic_op_form=True, assume_verified=True)
    if '"mhlo.' in text:  # operations that HLO has and StableHLO lacks
        module = ir.Module.parse(text.replace('"mhlo.', '"chlo.'))
    passmanager.PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(module.operation)
    return module


def _shape(name: str, tensor_type: Any) -> dict[str, Any]:
    from jax.extend.mlir import ir

    if not isinstance(tensor_type, ir.RankedTensorType) or not tensor_type.has_static_shape:
        raise UnsupportedOperationError(f"computation {name!r} takes or gives {tensor_type}: make a module of arrays of fixed shapes")
    text = str(tensor_type.element_type)
    hlo_name = _TYPES.get(text) or text.replace("ui", "u").lower()
    return {"type": "s" + hlo_name[1:] if hlo_name.startswith("i") else hlo_name, "sizes": list(tensor_type.shape)}


def _exported(name: str, artifact: bytes, ins: Any, outs: Any) -> export.Exported:
    """The program as a jax Exported: export a function of the same shapes, and put the module in the place of its own."""

    def shaped(*arrays: Any) -> list[Any]:
        return [jax.lax.full(out.shape, 0, out.dtype) for out in outs]

    with jax.enable_x64(True):
        exported = export.export(jax.jit(shaped, keep_unused=True))(*ins)
    checks = (export.DisabledSafetyCheck.platform(),)  # a module is for no hardware in particular
    return dataclasses.replace(exported, fun_name=name, mlir_module_serialized=artifact, disabled_safety_checks=checks)

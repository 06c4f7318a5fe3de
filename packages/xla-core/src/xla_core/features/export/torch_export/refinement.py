"""Fixes the sizes of a StableHLO module with open sizes, so that XLA can compile it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_ENTRY, _OPEN = "main", "main_of_open_sizes"


def with_fixed_sizes(artifact: bytes, shapes: Sequence[Sequence[int]]) -> bytes:
    """Refine a portable artifact for arguments of exactly these shapes. Returns bytecode.

    Raises ValueError if the module refuses them: sizes that must be equal differ, or a size is out of its range.
    """
    from jax.extend import mlir  # slow to import
    from jax.extend.mlir import ir
    from jax.extend.mlir.dialects import stablehlo as dialect

    with ir.Context() as context, ir.Location.unknown(context):
        module = dialect.deserialize_portable_artifact(context, artifact)
        _call_with_fixed_sizes(module, shapes)
        text = str(module).encode()
    try:
        return bytes(mlir.refine_polymorphic_shapes(text))
    except Exception as error:  # its type has no name in jaxlib
        offered = ", ".join(str(list(shape)) for shape in shapes)
        reason = str(error).partition("error: ")[2].partition("\n")[0] or str(error)
        raise ValueError(f"the exported program does not take inputs of the shapes {offered}: {reason}") from error


def _call_with_fixed_sizes(module: Any, shapes: Sequence[Sequence[int]]) -> None:
    """Wrap the module's function in one with fixed sizes: refinement goes from the arguments inwards."""
    from jax.extend.mlir import ir
    from jax.extend.mlir.dialects import func
    from jax.extend.mlir.dialects import stablehlo as dialect

    inner = next(operation for operation in module.body.operations if operation.name.value == _ENTRY)
    inner.attributes["sym_name"] = ir.StringAttr.get(_OPEN)
    inner.attributes["sym_visibility"] = ir.StringAttr.get("private")
    takes, gives = list(inner.type.inputs), list(inner.type.results)
    fixed = [ir.RankedTensorType.get(list(shape), tensor_type.element_type) for shape, tensor_type in zip(shapes, takes, strict=True)]
    with ir.InsertionPoint(module.body):
        outer: Any = func.FuncOp(_ENTRY, ir.FunctionType.get(fixed, gives))
    with ir.InsertionPoint(outer.add_entry_block()):
        arguments = [
            argument if argument.type == tensor_type else dialect.ConvertOp(tensor_type, argument).result
            for argument, tensor_type in zip(outer.arguments, takes, strict=True)
        ]
        func.ReturnOp(func.CallOp(gives, ir.FlatSymbolRefAttr.get(_OPEN), arguments).results)

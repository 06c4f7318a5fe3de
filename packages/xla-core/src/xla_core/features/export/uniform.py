"""Writes quantization in exported modules as StableHLO operations and types, and turns it into arithmetic to run a module.

XLA does not translate quantized types, so programs that run have arithmetic (ops/nn/quantized/quantization.py). Readers of exported modules
look for `uniform_quantize`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import torch
from jax.extend.core import Primitive
from jax.interpreters import mlir

from xla_core.base.dtypes import device_dtype
from xla_core.base.errors import ExecutionError
from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.signature import PLACEHOLDER, Signature
from xla_core.engine.graph.view import Operation
from xla_core.features.export.composites import needed
from xla_core.ops.nn.quantized.quantization import dequantized, quantized
from xla_core.ops.table import Context, overload_named

_CAST = "stablehlo.bitcast_convert"
_BYTECODE = b"ML\xefR"
_TYPE = re.compile(r"!quant\.uniform<([iu])(8|16|32)(?:<(-?\d+):(-?\d+)>)?:f32(?::(\d+))?, \{?([^{}]*)\}?>")


@dataclass(frozen=True)
class Uniform:
    """A quantized type: integers of `dtype` from low to high stand for float32 numbers. axis: of the channels, or -1."""

    dtype: np.dtype[Any]
    low: int
    high: int
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int

    @property
    def text(self) -> str:
        """The type in StableHLO's notation."""
        storage = f"{'u' if self.dtype.kind == 'u' else 'i'}{8 * self.dtype.itemsize}<{self.low}:{self.high}>"
        pairs = ",".join(f"{scale:.17e}:{zero}" for scale, zero in zip(self.scale, self.zero_point, strict=True))
        return f"!quant.uniform<{storage}:f32, {pairs}>" if self.axis < 0 else f"!quant.uniform<{storage}:f32:{self.axis}, {{{pairs}}}>"

    @classmethod
    def of(cls, text: str) -> Uniform | None:
        """Parse StableHLO's notation; None for other types."""
        match = _TYPE.fullmatch(text)
        if match is None:
            return None
        letter, bits, low, high, axis, numbers = match.groups()
        dtype = np.dtype(f"{letter}{int(bits) // 8}")
        pairs = [pair.strip().partition(":") for pair in numbers.split(",")]
        bounds = (np.iinfo(dtype).min, np.iinfo(dtype).max) if low is None else (int(low), int(high))
        scale, zeros = tuple(float(scale) for scale, _, _ in pairs), tuple(int(zero or 0) for _, _, zero in pairs)
        return cls(dtype, *bounds, scale, zeros, -1 if axis is None else int(axis))

    @property
    def valid(self) -> bool:
        """Whether StableHLO can express it: integers of at most 32 bits, float32 scales, zero points in the range of integers."""
        if self.dtype.kind not in "iu" or self.dtype.itemsize > 4:
            return False
        limits = np.iinfo(self.dtype)
        scales = all(np.finfo(np.float32).tiny <= scale <= np.finfo(np.float32).max for scale in self.scale)
        zeros = all(self.low <= zero <= self.high for zero in self.zero_point)
        return scales and zeros and bool(limits.min <= self.low < self.high <= limits.max)


def with_uniform_types(graph: Graph, value: Callable[[int], Any]) -> Graph:
    """`graph` with quantization by known scales as StableHLO operations.

    value: returns the array of a leaf by its index, or None if the array may change before the program runs.

    Quantization stays arithmetic if the program computes the scales, or no quantized type can express them.
    """
    values = {slot: partial(value, index) for index, slot in enumerate(graph.parts.leaf_slots)}
    entries: list[Any] = list(graph.entries)
    integers: dict[
        int, tuple[Uniform, tuple[int, ...]]
    ] = {}  # by slot: the type of quantized integers, and the operands of their operation
    for operation in graph.operations():
        kind = _kind(graph, operation, values) if operation.target in _QUANTIZE + _DEQUANTIZE else None
        if kind is None:
            continue
        operands = operation.operands
        if operation.target in _QUANTIZE:
            integers[operation.slot] = kind, operands
        elif integers.get(operands[0], (None,))[0] == kind:
            operands = integers[operands[0]][1]  # readers look for quantize and dequantize in sequence, without integers in between
        entries[operation.slot] = (_signature(entries[operation.slot][0], kind, len(operands)), *operands)
    return needed(entries, graph.outs) if integers else replace(graph, entries=tuple(entries))


def _kind(graph: Graph, operation: Operation, values: Mapping[int, Callable[[], Any]]) -> Uniform | None:
    names = [argument.name for argument in overload_named(operation.target)._schema.arguments]
    args, kwargs = graph.arguments(operation)
    arguments: dict[str, Any] = {"axis": -1, **dict(zip(names, args, strict=False)), **kwargs}
    scale, zero_point = (_numbers(arguments[name], values) for name in ("scale", "zero_point"))
    if scale is None or zero_point is None or arguments["input"].dtype is torch.float64:
        return None
    dtype = np.dtype(device_dtype(arguments["dtype"]))
    kind = Uniform(dtype, arguments["quant_min"], arguments["quant_max"], scale, tuple(int(zero) for zero in zero_point), arguments["axis"])
    return kind if kind.valid else None


def _numbers(argument: Any, values: Mapping[int, Callable[[], Any]]) -> tuple[float, ...] | None:
    """The numbers of a list, or of a leaf; None if they are not known."""
    if isinstance(argument, (list, tuple)):
        return tuple(float(number) for number in argument)
    value = values[argument.slot]() if argument.slot in values else None
    return tuple(np.asarray(value, np.float64).ravel().tolist()) if isinstance(value, (jax.Array, np.ndarray)) else None


def _signature(signature: Signature, kind: Uniform, operands: int) -> Signature:
    gives_floats = signature.target in _DEQUANTIZE

    def lower(context: Context, x: jax.Array, *others: Any) -> Any:
        wide = jax.lax.convert_element_type(x, np.float32) if jax.numpy.issubdtype(x.dtype, np.floating) else x
        return _UNIFORM.bind(wide, kind=kind, gives_floats=gives_floats)

    return Signature(signature.name, lower, (*(PLACEHOLDER,) * operands, kind.text), {}, signature.inferred, line=signature.line)


_QUANTIZE, _DEQUANTIZE = ("xla::quantize_tensor", "xla::quantize_channels"), ("xla::dequantize_tensor", "xla::dequantize_channels")
# Takes floats or integers through a quantized type to integers or floats.
_UNIFORM = Primitive("uniform")
_UNIFORM.def_abstract_eval(lambda x, *, kind, gives_floats: x.update(dtype=np.dtype(np.float32) if gives_floats else kind.dtype))


def _write(context: Any, x: Any, *, kind: Uniform, gives_floats: bool) -> list[Any]:
    from jax.extend.mlir import ir  # slow to import

    _load_quantized_types(context.module_context.context)
    takes_floats = context.avals_in[0].dtype == np.float32
    inner = _operation("stablehlo.uniform_quantize" if takes_floats else _CAST, x, ir.Type.parse(kind.text))
    if gives_floats:
        return [_operation("stablehlo.uniform_dequantize", inner, ir.F32Type.get())]
    integer = ir.IntegerType.get_unsigned if kind.dtype.kind == "u" else ir.IntegerType.get_signless
    return [_operation(_CAST, inner, integer(8 * kind.dtype.itemsize))]


mlir.register_lowering(_UNIFORM, _write)


def _operation(name: str, x: Any, element: Any) -> Any:
    from jax.extend.mlir import ir  # slow to import

    return ir.Operation.create(name, results=[ir.RankedTensorType.get(x.type.shape, element)], operands=[x]).result


def _load_quantized_types(context: Any) -> None:
    """Load the dialect of quantized types into an MLIR context, by reading an artifact that has one."""
    from jax.extend.mlir.dialects import stablehlo  # slow to import

    stablehlo.deserialize_portable_artifact(context, _artifact())


@cache
def _artifact() -> bytes:
    from jax.extend.mlir.dialects import stablehlo  # slow to import

    tensor_type = "tensor<!quant.uniform<i8:f32, 1.0>>"
    text = f"func.func @main(%x: {tensor_type}) -> {tensor_type} {{ return %x : {tensor_type} }}"
    return bytes(stablehlo.serialize_portable_artifact_str(text, stablehlo.get_current_version()))


def runnable(module: bytes | str) -> bytes | str:
    """Replace quantization in a module by arithmetic. Returns a module without quantization unchanged.

    Raises ExecutionError for a module that computes with quantized types in other ways.
    """
    if b"uniform_" not in (module if isinstance(module, bytes) else module.encode()):
        return module
    from jax.extend.mlir import ir  # slow to import
    from jax.extend.mlir.dialects import stablehlo

    lowered: Any = jax.jit(lambda: ()).lower().compiler_ir("stablehlo")
    context = lowered.context  # has all dialects that jax writes
    _load_quantized_types(context)
    with context, ir.Location.unknown():
        artifact = isinstance(module, bytes) and module.startswith(_BYTECODE)
        parsed = stablehlo.deserialize_portable_artifact(context, module) if artifact else ir.Module.parse(module)
        operations = _operations(parsed, ("stablehlo.uniform_quantize", "stablehlo.uniform_dequantize"))
        kinds = [_kind_of(operation) for operation in operations]  # read all types before any of them changes
        for index, (operation, kind) in enumerate(zip(operations, kinds, strict=True)):
            _replace_by_call(parsed, operation, kind, f"quantization_{index}")
        for operation in _operations(parsed, (_CAST,)):
            if operation.operands[0].type == operation.result.type:
                operation.result.replace_all_uses_with(operation.operands[0])
            if not list(operation.result.uses):
                operation.erase()
        text = str(parsed)
    if "!quant." in text:
        raise ExecutionError("the module computes with quantized types, which XLA does not run: export it with arithmetic in between")
    return text


def _operations(module: Any, names: tuple[str, ...]) -> list[Any]:
    matches: list[Any] = []

    def look(operation: Any) -> None:
        for region in operation.regions:
            for block in region:
                for inner in block:
                    if inner.operation.name in names:
                        matches.append(inner.operation)
                    look(inner.operation)

    look(module.operation)
    return matches


def _kind_of(operation: Any) -> Uniform:
    quantizes = operation.name == "stablehlo.uniform_quantize"
    element = (operation.result if quantizes else operation.operands[0]).type.element_type
    kind = Uniform.of(str(element))
    if kind is None:
        raise ExecutionError(f"a module with {element} does not run here: only quantized types of float32 do")
    return kind


def _replace_by_call(module: Any, operation: Any, kind: Uniform, name: str) -> None:
    """Replace a quantization operation by a call of a new function `name` that does it with arithmetic."""
    from jax.extend.mlir import ir  # slow to import

    operand = operation.operands[0]
    if operation.name == "stablehlo.uniform_quantize":
        dtype = np.dtype(np.float32)
        function = partial(
            quantized, scale=kind.scale, zero_point=kind.zero_point, low=kind.low, high=kind.high, dtype=kind.dtype, axis=kind.axis
        )
    else:
        dtype = kind.dtype
        function = partial(dequantized, scale=kind.scale, zero_point=kind.zero_point, axis=kind.axis)
        cast = getattr(operand.owner, "operation", None)  # None for an argument of the function
        operand = cast.operands[0] if cast is not None and cast.name == _CAST else operand
    lowered: Any = jax.jit(function).lower(jax.ShapeDtypeStruct(tuple(operand.type.shape), dtype))
    (main,) = lowered.compiler_ir("stablehlo").body.operations
    module.body.append(ir.Operation.parse(str(main).replace("public @main", f"private @{name}", 1)))
    call = ir.Operation.create(
        "func.call",
        results=[ir.Type.parse(str(main.type.results[0]))],
        operands=[operand],
        attributes={"callee": ir.FlatSymbolRefAttr.get(name)},
        ip=ir.InsertionPoint(operation),
    )
    operation.result.replace_all_uses_with(call.result)
    operation.erase()

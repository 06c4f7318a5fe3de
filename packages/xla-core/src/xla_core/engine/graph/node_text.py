"""A program in the notation of PyTorch/XLA's own dumps, for scripts that read those: a node a line, torch's names of operators.

    IR {
      %0 = f32[2,2]{1,0} xla::device_data(), xla_shape=f32[2,2]{1,0}, device=CPU:0
      %1 = s64[] prim::Constant(), xla_shape=s64[], value=2
      %2 = f32[2,2]{1,0} aten::mul(%0, %1), xla_shape=f32[2,2]{1,0}, location=train.py:17, ROOT=0
    }

Our own form, which golden files and xla-debug read, is `engine/graph/text.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import NamedLine, ScalarInput, ScalarKind, result_slots
from xla_core.engine.graph.graph import Graph, Inputs, own
from xla_core.engine.graph.signature import PLACEHOLDER, Signature
from xla_core.engine.graph.view import GraphView
from xla_core.ops.table import TABLE, operator_of

_TYPES = {"bool": "pred", "bfloat16": "bf16"}
_OF_NUMBERS = {ScalarKind.FLOAT: "f64[]", ScalarKind.INT: "s64[]", ScalarKind.SEED: "u64[]"}
# PyTorch/XLA's names of operations without a row in the op table; a row has its own in `shown_as`.
_NAMES = {"xla::empty": "aten::empty", "xla::sharding_constraint": "xla::custom_sharding"}
_SCATTERED = frozenset({"slice", "select", "diagonal", "as_strided"})
_VIEW = re.compile(r"(\w+)(?:\.\w+)?\[")


def element_type(dtype: np.dtype) -> str:
    """XLA's name of an element type: `f32`, `s64`, `pred`, `f8e4m3fn`."""
    short = _TYPES.get(dtype.name)
    if short is not None:
        return short
    name, _, variant = dtype.name.partition("_")
    letter, bits = re.fullmatch(r"([a-z]+)(\d+)", name).groups()  # type: ignore[union-attr]
    return {"int": "s", "uint": "u", "float": "f", "complex": "c"}[letter] + bits + variant


def shape_text(aval: Aval) -> str:
    """`f32[2,3]{1,0}`: element type on the device, sizes, and the dimensions from the fastest to the slowest."""
    sizes = ",".join(map(str, aval.shape))
    order = ",".join(str(dim) for dim in reversed(range(len(aval.shape))))
    return f"{element_type(aval.physical)}[{sizes}]" + (f"{{{order}}}" if aval.shape else "")


def node_text(graph: GraphView, device: str, numbers: Mapping[int, Any] | None = None, shardings: Mapping[int, str] | None = None) -> str:
    """The program, one node a line. device: of its data, as `CPU:0`. numbers, shardings: of inputs, by slot, where known."""
    graph = own(graph)
    names: dict[int, str] = {}
    roots = {slot: index for index, slot in enumerate(graph.outs)}
    rows: list[str] = []
    for slot, entry in enumerate(graph.entries):
        if graph.parts.makers[slot] != slot:
            continue
        node = f"%{len(rows)}"
        slots = result_slots(graph.entries, slot)
        names.update({at: node if len(slots) == 1 else f"{node}.{index}" for index, at in enumerate(slots)})
        shape = _shape(graph, slots)
        if type(entry) is tuple:
            call, attributes = f"{_name(entry[0])}({', '.join(names[at] for at in entry[1:])})", _attributes(entry[0], len(slots))
        else:
            call, attributes = _input(entry, device, (numbers or {}).get(slot), (shardings or {}).get(slot))
        line = graph.line(slot)
        attributes += [f"location={line}"] if line else []
        attributes += [f"scope={'.'.join(line.scopes)}"] if isinstance(line, NamedLine) and line.scopes else []
        attributes += [f"ROOT={roots[at]}" for at in slots if at in roots]
        rows.append(f"  {node} = {', '.join([f'{shape} {call}', f'xla_shape={shape}', *attributes])}")
    return "\n".join(["IR {", *rows, "}", ""])


def numbers_of(graph: Graph, inputs: Inputs) -> dict[int, Any]:
    """The numbers of inputs that enter from the host, by slot."""
    columns = {
        (ScalarKind.FLOAT, True): iter(inputs.fixed_floats),
        (ScalarKind.FLOAT, False): iter(inputs.floats),
        (ScalarKind.INT, True): iter(inputs.fixed_ints),
        (ScalarKind.INT, False): iter(inputs.ints),
        (ScalarKind.SEED, False): iter(inputs.seeds),
    }
    parts = graph.parts
    return {slot: next(columns[scalar.kind, scalar.fixed]) for slot, scalar in zip(parts.scalar_slots, parts.scalars, strict=True)}


def _shape(graph: Graph, slots: list[int]) -> str:
    entry = graph.entries[slots[0]]
    if isinstance(entry, ScalarInput) and entry.aval is None:
        return _OF_NUMBERS[entry.kind]
    avals = [graph.parts.avals[slot] for slot in slots]
    texts = ["token[]" if aval is None else shape_text(aval) for aval in avals]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _input(entry: Any, device: str, number: Any, sharding: str | None) -> tuple[str, list[str]]:
    if isinstance(entry, ScalarInput) and entry.fixed:
        return "prim::Constant()", [] if number is None else [f"value={number}"]
    return "xla::device_data()", [f"device={device}", *([f"sharding={sharding}"] if sharding else [])]


def _name(signature: Signature) -> str:
    """The name of an operator, without its overload; a chain of views has the name of its last step."""
    if signature.target:
        row = TABLE.get(signature.target)
        return (row and row.shown_as) or operator_of(signature.target)
    name = signature.name.replace(".", "::", 1)
    if name.startswith(("xla::read.", "xla::write.")):
        last = _VIEW.findall(_chain(signature))[-1]
        if name.startswith("xla::read."):
            return f"aten::{last}"
        return f"aten::{last}_scatter" if last in _SCATTERED else "xla::update_slice"
    return _NAMES.get(name, name.partition("[")[0])


def _attributes(signature: Signature, count: int) -> list[str]:
    """The constant arguments, by their names in torch's schema."""
    constants = [(name, value) for name, value in zip(_parameters(signature), signature.args, strict=False) if not _has_operand(value)]
    constants += [(name, value) for name, value in signature.kwargs.items() if not _has_operand(value)]
    texts = [f"{name}={_shown(value)}" for name, value in constants if value is not None and name != "shardings"]
    chain = _chain(signature)
    return [f"num_outputs={count}"] * (count > 1) + ([f"view={chain}"] if chain else []) + texts


def _chain(signature: Signature) -> str:
    """The steps of a view that is read or written, as `view[(2, 8)].select.int[0]`."""
    prefix, _, chain = signature.name.removeprefix("xla.").partition(".")
    return chain if prefix in ("read", "write") and not signature.target else ""


def _parameters(signature: Signature) -> list[str]:
    """Names of the positional arguments."""
    namespace, _, operator = signature.target.partition("::")
    name, _, overload = operator.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None) if namespace else None
    if packet is None:
        return [f"arg{index}" for index in range(len(signature.args))]
    return [argument.name for argument in getattr(packet, overload or "default")._schema.arguments]


def _has_operand(value: Any) -> bool:
    return any(map(_has_operand, value)) if isinstance(value, (list, tuple)) else value is PLACEHOLDER


def _shown(value: Any) -> str:
    return f"({', '.join(map(_shown, value))})" if isinstance(value, (list, tuple)) else str(value).removeprefix("torch.")

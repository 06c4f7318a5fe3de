"""Operators that mark tensors: as bounds of composites, or with notes for a module's text."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax
import torch

from xla_core.ops.table import Context, OpSpec, register_op

Attribute = int | float | str | bool

# Kept forever: torch removes the operators when their library is collected.
_LIBRARY: Any = torch.library.Library("xla", "FRAGMENT")


def _copy(x: torch.Tensor, *others: Any) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _pass_on(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return (grad, *[None] * ctx.rest)


def _count(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.rest = len(inputs) - 1


def _define(schema: str, lower: Any) -> Any:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, _copy, "CompositeExplicitAutograd")
    register_op(OpSpec(f"xla::{name}", lower))
    torch.library.register_autograd(f"xla::{name}", _pass_on, setup_context=_count, lib=_LIBRARY)
    return getattr(torch.ops.xla, name).default


def _same(context: Context, x: jax.Array, *others: Any) -> jax.Array:
    """mark_tensor(Tensor x, str name, int pos, str id, bool is_input, str? attr=None) -> Tensor; features/export/composites.py reads it."""
    return x


def _noted(context: Context, x: jax.Array, data: str) -> jax.Array:
    """write_mlir_debuginfo(Tensor x, str data) -> Tensor; the note becomes a scope in the operation's location."""
    with jax.named_scope(data):
        noted: jax.Array = jax.lax.optimization_barrier(x)
    return noted


_MARK = _define("mark_tensor(Tensor x, str name, int pos, str id, bool is_input, str? attr=None) -> Tensor", _same)
_NOTE = _define("write_mlir_debuginfo(Tensor x, str data) -> Tensor", _noted)


@dataclass(slots=True)
class BoundaryMetadata:
    """Describes a tensor that bounds a composite: input or output, and at which position. id: of the use of the composite."""

    name: str
    pos: int
    id: str
    is_input: bool = True
    attr: dict[str, Attribute] | None = None


class BoundaryMetadataSerializer(json.JSONEncoder):
    """Writes `BoundaryMetadata` as JSON."""

    def default(self, o: Any) -> Any:
        """The fields of a bound; raises TypeError for anything else."""
        return asdict(o) if isinstance(o, BoundaryMetadata) else super().default(o)


def serialize_composite_attr(attr: Mapping[str, Attribute] | None) -> str | None:
    """Attributes as JSON, or None. Raises TypeError for keys other than texts, and values other than numbers, texts and booleans."""
    if attr is None:
        return None
    for key, value in attr.items():
        if not isinstance(key, str) or not isinstance(value, (int, float, str, bool)):
            raise TypeError(f"attributes of a composite are numbers, texts or booleans by name, got {key!r}: {value!r}")
    return json.dumps(dict(attr))


def deserialize_composite_attr(attr: str | None) -> dict[str, Attribute] | None:
    """Read the attributes that `serialize_composite_attr` wrote."""
    return None if attr is None else dict(json.loads(attr))


def mark_tensor(
    x: torch.Tensor, name: str, pos: int, id: str, is_input: bool, attr: Mapping[str, Attribute] | str | None = None
) -> torch.Tensor:
    """Mark `x` as input or output `pos` of use `id` of the composite `name`. Operations between such marks are exported as one operation.

    attr: attributes of the composite, written at its outputs. Raises TypeError for attributes that are not numbers, texts or booleans.
    """
    written = attr if isinstance(attr, str) else serialize_composite_attr(attr)
    marked: torch.Tensor = _MARK(x, name, pos, id, is_input, written)
    return marked


def mark_tensor_meta(x: torch.Tensor, name: str, pos: int, id: str, is_input: bool, attr: Any = None) -> torch.Tensor:
    """An empty tensor like `x`, the result of `mark_tensor` for tracers."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def write_mlir_debuginfo(x: torch.Tensor, data: str) -> torch.Tensor:
    """Put `data` into the location of `x` in the module's text, which `XLA_HLO_DEBUG=1` shows. Returns `x`."""
    noted: torch.Tensor = _NOTE(x, data)
    return noted


def write_mlir_debuginfo_meta(x: torch.Tensor, data: str) -> torch.Tensor:
    """An empty tensor like `x`, the result of `write_mlir_debuginfo` for tracers."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _xla_mark_tensor(x: torch.Tensor, info: str) -> torch.Tensor:
    """Mark a tensor as JSON of `BoundaryMetadata` says."""
    return mark_tensor(x, **json.loads(info))


class StableHLOCompositeBuilder:
    """Marks inputs and outputs of one use of a composite. The operations between are exported as `stablehlo.composite`.

    attr: attributes of the composite. Raises TypeError as `serialize_composite_attr`.
    """

    def __init__(self, name: str, attr: Mapping[str, Attribute] | None = None) -> None:
        self.name = name
        self.attr = serialize_composite_attr(attr)
        self.id = uuid.uuid4().hex
        self._inputs = self._outputs = 0

    def mark_inputs(self, *tensors: torch.Tensor) -> Any:
        """Mark tensors as the next inputs. Returns the marked tensor, or a tuple of several."""
        marked = tuple(
            mark_tensor(tensor, self.name, self._inputs + index, self.id, True, self.attr) for index, tensor in enumerate(tensors)
        )
        self._inputs += len(tensors)
        return marked[0] if len(marked) == 1 else marked

    def mark_outputs(self, *tensors: torch.Tensor) -> Any:
        """Mark tensors as the next outputs. Returns the marked tensor, or a tuple of several."""
        marked = tuple(
            mark_tensor(tensor, self.name, self._outputs + index, self.id, False, self.attr) for index, tensor in enumerate(tensors)
        )
        self._outputs += len(tensors)
        return marked[0] if len(marked) == 1 else marked

"""The pending program as text."""

from __future__ import annotations

import torch

from xla_core.api.conversion import plain
from xla_core.export import stablehlo
from xla_core.frontend.interop import graph_of, storage_key
from xla_core.frontend.values import value_of
from xla_core.ir.text import graph_hash, graph_text
from xla_core.xlac.common import Tensors, plain_tensors


def _get_xla_tensors_text(tensors: Tensors) -> str:
    return graph_text(graph_of(plain_tensors(tensors)))


def _get_xla_tensors_hlo(tensors: Tensors) -> str:
    return stablehlo.get_hlo(plain_tensors(tensors))


def _get_xla_tensors_dot(tensors: Tensors) -> str:
    graph = graph_of(plain_tensors(tensors))
    rows = graph_text(graph, lines=False).splitlines()
    edges = [
        f"  n{operand} -> n{slot};"
        for slot, entry in enumerate(graph.entries)
        if type(entry) is tuple
        for operand in dict.fromkeys(entry[1:])
    ]
    nodes = [f'  n{slot} [label="{_escaped(rows[slot])}"];' for slot in range(len(graph.entries))]
    return "\n".join(["digraph program {", *nodes, *edges, "}"])


def _get_xla_tensor_debug_info(tensor: torch.Tensor) -> str:
    value = value_of(plain(tensor))
    state = "pending" if value.buffer is None else "computed"
    return f"{value.aval} on {value.recorder.device}, {state}, alias group {storage_key(plain(tensor))}\n{_get_xla_tensors_text([tensor])}"


def _get_graph_hash(tensors: Tensors) -> bytes:
    return bytes.fromhex(graph_hash(graph_of(plain_tensors(tensors))))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')

"""Recorded programs as text: in our notation, as HLO, and in the notation of PyTorch/XLA's dumps.

    >>> import torch
    >>> import torch_xla
    >>> from xla_core.abi.graph import graph_of
    >>> from xla_core.abi.texts import graph_text, hlo_text
    >>> x = torch.rand(2, 3, device="xla").exp()
    >>> "aten.exp" in graph_text(graph_of([x])), "exponential" in hlo_text([x])
    (True, True)

* `graph_text` prints a `graph.Graph`, an operation a line; `lines=False` leaves the user's lines out, so that equal programs have equal
  texts.
* `hlo_text` is the pending operations behind some tensors as HLO, before the compiler optimizes it.
* `node_text` prints a `graph.Graph` as PyTorch/XLA would have.

Guarantees: printing runs nothing, and what is pending stays so.
"""

from __future__ import annotations

from xla_core.engine.graph.node_text import node_text
from xla_core.engine.graph.text import graph_text
from xla_core.features.export.stablehlo import get_hlo as hlo_text

__all__ = ["graph_text", "hlo_text", "node_text"]

"""Functorch's partitioners, which decide which values of a function are kept for its gradient."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch


def is_default(partition_fn: Callable[..., Any] | None) -> bool:
    """Whether the partitioner is None or functorch's `default_partition`, which keeps what torch's formulas need."""
    # Callers who pass it have imported it. The import takes a second, which others need not wait for.
    module = sys.modules.get("functorch.compile")
    return partition_fn is None or (module is not None and partition_fn is getattr(module, "default_partition", None))


def partitioned(function: Callable[[list[Any]], list[Any]], partition_fn: Callable[..., Any] | None) -> Callable[[list[Any]], list[Any]]:
    """Let functorch trace `function` when it is called, and run the two graphs that `partition_fn` makes of it and its gradient."""
    from functorch.compile import aot_function, make_boxed_func  # type: ignore[import-untyped]  # slow to import

    def run_as_it_is(graph: torch.fx.GraphModule, examples: Any) -> Any:
        return make_boxed_func(graph.forward)

    traced = aot_function(
        lambda *arguments: function(list(arguments)), fw_compiler=run_as_it_is, bw_compiler=run_as_it_is, partition_fn=partition_fn
    )

    def call(arguments: list[Any]) -> list[Any]:
        return list(traced(*arguments))

    return call

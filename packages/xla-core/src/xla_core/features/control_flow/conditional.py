"""`cond`: runs one of two functions, chosen by a predicate on the device, as one operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_core.base.private_torch import tree_flatten, tree_unflatten
from xla_core.engine.tensor.plain import holder
from xla_core.engine.tracing.bodies import check_on_device
from xla_core.features.control_flow.branches import branches, run


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
    """Return `true_fn(*operands)` if `pred` is true, else `false_fn(*operands)`. Both are recorded, and the device runs one of them.

    pred: a tensor of one element on the device, or a Python bool, which chooses while recording. operands: nested tensors, and constants.
    The functions return equally nested results of the same shapes and dtypes, with the gradient of the function that ran. Raises ValueError
    for results that differ, GraphBreakError for a function that reads a value.
    """
    if not isinstance(pred, torch.Tensor):
        return true_fn(*operands) if pred else false_fn(*operands)
    if pred.numel() != 1:
        raise RuntimeError(f"the predicate of cond has one element, got a tensor of {tuple(pred.shape)}")
    check_on_device("cond", [pred])
    leaves, tree = tree_flatten(tuple(operands))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    check_on_device("cond", tensors)
    recorder = holder(pred)._storage.value.recorder
    nestings: list[Any] = []

    def flat(function: Callable[..., Any]) -> Callable[[list[Any]], list[Any]]:
        def call(values: list[Any]) -> list[Any]:
            remaining = iter(values)
            arguments = tree_unflatten([next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], tree)
            results, nesting = tree_flatten(function(*arguments))
            nestings.append((nesting, tuple(result is None for result in results)))
            return [result for result in results if result is not None]

        return call

    recorded = branches(recorder, "cond", [flat(true_fn), flat(false_fn)], tensors)
    if nestings[0] != nestings[1]:
        raise ValueError(f"the branches of cond nest their results differently: {nestings[0][0]} and {nestings[1][0]}")
    results = iter(run(recorder, recorded, pred, tensors))
    nesting, absent = nestings[0]
    return tree_unflatten([None if missing else next(results) for missing in absent], nesting)

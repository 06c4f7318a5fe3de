"""Convert all tensors of a nesting in one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xla_core.base.nesting import Survey


class ToXlaTensorArena:
    """Collects the leaves that `select_fn` accepts, converts them with one call of `convert_fn`, and rebuilds the nesting.

    convert_fn: takes a non-empty list of leaves, returns as many results in the same order.
    """

    def __init__(self, convert_fn: Callable[[list[Any]], list[Any]], select_fn: Callable[[Any], bool]) -> None:
        self._convert_fn = convert_fn
        self._select_fn = select_fn

    def transform(self, inputs: Any) -> Any:
        """`inputs` with the selected leaves converted; `inputs` itself stays as it is.

        Raises: ValueError if `convert_fn` returns another number of results.
        """
        survey = Survey(inputs, self._select_fn)
        if not survey.leaves:
            return survey.rebuild([])
        results = self._convert_fn(list(survey.leaves))
        if len(results) != len(survey.leaves):
            raise ValueError(f"convert_fn got {len(survey.leaves)} tensors and returned {len(results)}; it must return one for each")
        return survey.rebuild(results)

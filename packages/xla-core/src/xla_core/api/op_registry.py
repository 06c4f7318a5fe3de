"""Operations that users build from computations of `torch_xla.core.xla_builder`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch


class Op:
    """A user's operation: called on xla tensors, recorded like any other, not differentiable.

    opfn: called once for each set of shapes with one `xla_builder.Op` per tensor and the keyword arguments; returns the result's.
    """

    def __init__(self, name: str, opfn: Callable[..., Any]) -> None:
        self.name = name
        self._opfn = opfn
        self._built: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: torch.Tensor, **kwargs: Any) -> Any:
        builder = importlib.import_module("torch_xla.core.xla_builder")
        key = (tuple((tuple(arg.shape), arg.dtype) for arg in args), repr(sorted(kwargs.items())))
        if key not in self._built:
            shapes = [builder.tensor_shape(arg) for arg in args]
            computation = builder.create_computation(self.name, self._opfn, shapes, **kwargs)
            self._built[key] = builder.xla_computation_as_func(computation)
        return self._built[key](*args)


def register(name: str, opfn: Callable[..., Any]) -> Op:
    """A callable operation over xla tensors, built from `opfn` as `Op` says; `name` is the name of its computation."""
    return Op(name, opfn)

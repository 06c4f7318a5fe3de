"""Operations that users register: built once for each set of shapes, called on xla tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from xla_core.builder.op import create_computation
from xla_core.builder.running import tensor_shape, xla_computation_as_func


class Op:
    """A user's operation: called on xla tensors, recorded like any other, with the gradient that JAX gives it.

    opfn: called once for each set of shapes with one `xla_builder.Op` per tensor and the keyword arguments; returns the result's.
    """

    def __init__(self, name: str, opfn: Callable[..., Any]) -> None:
        self.name = name
        self._opfn = opfn
        self._built: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: torch.Tensor, **kwargs: Any) -> Any:
        key = (tuple((tuple(arg.shape), arg.dtype) for arg in args), repr(sorted(kwargs.items())))
        found = self._built.get(key)
        if found is None:
            computation = create_computation(self.name, self._opfn, [tensor_shape(arg) for arg in args], **kwargs)
            found = self._built[key] = xla_computation_as_func(computation)
        return found(*args)


def register(name: str, opfn: Callable[..., Any]) -> Op:
    """A callable operation over xla tensors, built from `opfn` as `Op` says; `name` is the name of its computation."""
    return Op(name, opfn)

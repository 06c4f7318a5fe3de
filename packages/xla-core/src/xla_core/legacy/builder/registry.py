"""Operations that users register: built once for each set of shapes, called on xla tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch

from xla_core.base.private_torch import between_graphs
from xla_core.legacy.builder.constants import array_of
from xla_core.legacy.builder.op import create_computation
from xla_core.legacy.builder.running import tensor_shape, xla_computation_as_func


class Op:
    """A user's operation: called on xla tensors, recorded like any other, with the gradient that JAX gives it.

    opfn: called once for each set of shapes with one `xla_builder.Op` per tensor and the keyword arguments; returns the result's.
    """

    def __init__(self, name: str, opfn: Callable[..., Any]) -> None:
        self.name = name
        self._opfn = opfn
        self._built: dict[Any, Callable[..., Any]] = {}

    @between_graphs
    def __call__(self, *args: torch.Tensor, **kwargs: Any) -> Any:
        for arg in args:
            if not isinstance(arg, torch.Tensor):
                raise TypeError(f"{self.name} takes xla tensors, not a {type(arg).__name__}: what is no tensor is given by keyword")
        key = (tuple((tuple(arg.shape), arg.dtype) for arg in args), _key_of(kwargs))
        function = self._built.get(key)
        if function is None:
            computation = create_computation(self.name, self._opfn, [tensor_shape(arg) for arg in args], **kwargs)
            function = self._built[key] = xla_computation_as_func(computation)
        return function(*args)


def _key_of(value: Any) -> Any:
    """A hashable key, equal for values of the same types and contents."""
    if isinstance(value, dict):
        return dict, tuple((key, _key_of(value[key])) for key in sorted(value, key=str))
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_key_of(item) for item in value)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        array = array_of(value)
        return array.dtype, array.shape, array.tobytes()
    return type(value), value if isinstance(value, Hashable) else repr(value)


def register(name: str, opfn: Callable[..., Any]) -> Op:
    """A callable operation over xla tensors, built from `opfn` as `Op` says; `name` is the name of its computation."""
    return Op(name, opfn)

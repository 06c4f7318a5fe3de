"""Users' operations and kernels: what the API asks of `torch_xla.core.xla_builder`."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from jax.experimental import pallas

from torch_xla.core import xla_op_registry
from torch_xla.experimental import custom_kernel as kernels


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A builder that runs functions at once; `.built` lists what was asked for."""
    module: Any = types.ModuleType("torch_xla.core.xla_builder")
    module.built = []

    def create_computation(name: str, function: Callable[..., Any], shapes: list[Any], **kwargs: Any) -> Any:
        module.built.append((name, shapes, kwargs))
        return lambda *args: function(*args, **kwargs)

    module.tensor_shape = lambda tensor: tuple(tensor.shape)
    module.create_computation = create_computation
    module.xla_computation_as_func = lambda computation: computation
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_registered_operation_is_built_once_for_each_shape(builder: Any) -> None:
    op = xla_op_registry.register("scaled", lambda x, y, factor=1: (x + y) * factor)
    assert isinstance(op, xla_op_registry.Op) and op.name == "scaled"
    for _ in range(2):
        assert op(torch.ones(2, device="xla"), torch.ones(2, device="xla"), factor=3).tolist() == [6.0, 6.0]
    assert op(torch.ones(2, device="xla"), torch.ones(2, device="xla")).tolist() == [2.0, 2.0]
    op(torch.ones(1, device="xla"), torch.ones(1, device="xla"), factor=3)
    assert builder.built == [
        ("scaled", [(2,), (2,)], {"factor": 3}),
        ("scaled", [(2,), (2,)], {}),
        ("scaled", [(1,), (1,)], {"factor": 3}),
    ]


def test_a_pallas_kernel_runs_without_its_hardware() -> None:
    def add_one(source: Any, target: Any) -> None:
        target[...] = source[...] + 1.0

    def added(x: jax.Array) -> jax.Array:
        return pallas.pallas_call(add_one, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    kernel = kernels.make_kernel_from_pallas(added, lambda x: [(x.shape, x.dtype)])
    assert kernel(torch.arange(8.0).reshape(1, 8).to("xla")).tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]]

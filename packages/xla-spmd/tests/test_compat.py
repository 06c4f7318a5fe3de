"""Every private name of torch that this package uses still does what it is used for: after an upgrade, look here first."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

import xla_spmd
from xla_core import abi
from xla_spmd import _compat

SOURCES = Path(xla_spmd.__file__).parent
PRIVATE = re.compile(r"^(jax\._(?!_)|jaxlib\.|torch\.(\w+\.)*_)")


def private_names(source: str) -> list[str]:
    """Dotted private names of torch and jax that Python code reaches for."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [f"{alias.name}." for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        else:
            continue
        found += [name for name in names if PRIVATE.match(name)]
    return found


@pytest.mark.parametrize("source", ["import jaxlib", "from torch.utils import _pytree", "torch._C.x()", "from jax._src import core"])
def test_private_names_are_seen(source: str) -> None:
    assert private_names(source)


def test_private_names_stay_in_one_module() -> None:
    strays = {
        path.name: names
        for path in SOURCES.rglob("*.py")
        if path.name != "_compat.py" and (names := private_names(path.read_text(encoding="utf-8")))
    }
    assert strays == {}


def test_a_wrapper_has_the_device_shape_and_strides_it_is_told() -> None:
    class Wrapper(abi.XLATensor):
        pass

    wrapper = _compat.make_wrapper(Wrapper, (2, 3), (1, 2), 0, dtype=torch.int64, device=torch.device("xla", 0), layout=torch.strided)
    assert (type(wrapper), wrapper.shape, wrapper.dtype, str(wrapper.device)) == (Wrapper, (2, 3), torch.int64, "xla:0")
    assert torch.Tensor.stride(wrapper) == (1, 2)


def test_functions_of_torch_stay_what_they_are() -> None:
    class Plain(torch.Tensor):
        __torch_function__ = _compat.DISABLED_TORCH_FUNCTION

    assert type(torch.ones(2).as_subclass(Plain) + 1) is torch.Tensor, "torch's own rule would keep the class"


def test_trees() -> None:
    assert _compat.tree_map(lambda leaf: -leaf, ([1, (2,)], {"a": 3})) == ([-1, (-2,)], {"a": -3})
    values = _compat.tree_map(lambda leaf: leaf + 1, torch.max(torch.zeros(2, 2), 0))
    assert values.indices.tolist() == [1, 1] and isinstance(values, torch.return_types.max)

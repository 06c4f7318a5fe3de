"""Constants inside branches and loops, which torch's functionalization cannot handle: an operation returns each by its number."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch import fx

# Kept forever: torch removes the operators when their library is collected.
_LIBRARY: Any = torch.library.Library("xla_core", "FRAGMENT")
_LIBRARY.define("exported_constant(int number, SymInt[] size, ScalarType dtype) -> Tensor")
_numbers = itertools.count()
_constants: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()


def _empty(number: int, size: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device="cpu")


torch.library.register_fake("xla_core::exported_constant", _empty, lib=_LIBRARY)
_CONSTANT = torch.ops.xla_core.exported_constant.default


def by_number(module: fx.GraphModule) -> list[torch.Tensor]:
    """Replace each constant tensor of an inner module by the operation, in place. Returns the tensors, which the caller has to keep."""
    tensors: list[torch.Tensor] = []
    for node in module.graph.find_nodes(op="get_attr"):
        tensor = getattr(module, str(node.target), None)
        if isinstance(tensor, torch.Tensor):
            number = next(_numbers)
            _constants[number] = tensor
            tensors.append(tensor)
            with module.graph.inserting_before(node):
                taken = module.graph.call_function(_CONSTANT, (number, list(tensor.shape), tensor.dtype))
            taken.meta = node.meta
            node.replace_all_uses_with(taken)
            module.graph.erase_node(node)
    for name in {name for name, tensor in vars(module).items() if isinstance(tensor, torch.Tensor)} | set(module._buffers):
        delattr(module, name)
    module.recompile()
    return tensors


def constant_of(target: Any, args: tuple[Any, ...]) -> torch.Tensor | None:
    """The constant that a call of the operation returns; None for other operations."""
    return _constants[args[0]] if target is _CONSTANT else None

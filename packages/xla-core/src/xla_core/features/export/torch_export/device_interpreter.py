"""Runs exported graphs node by node on tensors of a device."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.base.private_torch import OpOverload, tree_leaves, tree_map
from xla_core.features.export.custom_call import extract_custom_call_outputs_shape_dtype, stablehlo_custom_call
from xla_core.features.export.torch_export.constants import constant_of


def becomes_custom_call(target: Any, allowed: frozenset[str] | set[str]) -> bool:
    """Whether an operation becomes a custom call. allowed: namespaces, or names such as `mine::op`."""
    return isinstance(target, OpOverload) and not allowed.isdisjoint({target.namespace, target._schema.name})


class XLAExportInterpreter(torch.fx.Interpreter):
    """Runs an exported graph, and creates all tensors on an xla device.

    custom_ops_allowed_in_graph: namespaces, or names such as `mine::op`, of operations that become custom calls of their name.
    gm_serializer: accepted for compatibility.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        device: torch.device,
        custom_ops_allowed_in_graph: frozenset[str] | set[str] = frozenset(),
        gm_serializer: Any = None,
    ) -> None:
        super().__init__(module)
        self._device = device
        self._custom = custom_ops_allowed_in_graph

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node like fx, or as a custom call if that is allowed."""
        target: Any = n.target
        if becomes_custom_call(target, self._custom):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            tensors = [item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
            shapes, dtypes = extract_custom_call_outputs_shape_dtype(n)
            return stablehlo_custom_call(tensors, target._schema.name, shapes, dtypes)
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten._assert_tensor_metadata.default:
            return None  # checks the device of the example inputs
        constant = constant_of(target, args)
        if constant is not None:
            return constant.to(self._device)
        args, kwargs = tree_map(lambda item: self._device if isinstance(item, torch.device) else item, (args, kwargs))
        if _makes_tensors(target) and not any(isinstance(item, torch.Tensor) for item in tree_leaves((args, kwargs))):
            kwargs = {**kwargs, "device": self._device}  # the node may name no device
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        attribute = super().get_attr(target, args, kwargs)
        if isinstance(attribute, torch.fx.GraphModule):  # of a branch, a loop, a region
            return XLAExportInterpreter(attribute, self._device, self._custom).run
        return attribute.to(self._device) if isinstance(attribute, torch.Tensor) else attribute


def _makes_tensors(target: Any) -> bool:
    return isinstance(target, OpOverload) and any(
        argument.name == "device" and argument.kwarg_only for argument in target._schema.arguments
    )

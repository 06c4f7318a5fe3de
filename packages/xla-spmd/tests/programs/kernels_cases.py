"""Attention kernels over a mesh: each device for its batches and heads."""

from __future__ import annotations

from typing import Any

import torch

import torch_xla.distributed.spmd as xs
from harness import case, far
from torch_xla._XLAC import _get_xla_tensors_hlo
from torch_xla.experimental.custom_kernel import flash_attention
from torch_xla.experimental.splash_attention import SplashAttentionConfig, splash_attention

MESH = xs.Mesh(range(8), (4, 2), ("data", "heads"))
SPEC = ("data", "heads", None, None)
DRAW = torch.Generator().manual_seed(0)
INPUTS = [torch.randn(4, 2, 6, 8, generator=DRAW) for _ in range(3)]
IDS = torch.tensor([[0, 0, 1, 1, 1, 2]] * 4)
VISIBLE = (IDS[:, None, :, None] == IDS[:, None, None, :]) & torch.ones(6, 6).tril().bool()


def _on(device: str) -> list[torch.Tensor]:
    return [one.detach().to(device).requires_grad_() for one in INPUTS]


def _expected(scale: float) -> list[torch.Tensor]:
    """The output and the gradients of its squares."""
    inputs = _on("cpu")
    output = torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=VISIBLE, scale=scale)
    output.square().sum().backward()
    return [output.detach(), *(one.grad for one in inputs if one.grad is not None)]


def _errors(output: torch.Tensor, inputs: list[torch.Tensor], scale: float) -> list[float]:
    output.square().sum().backward()
    found = [output.detach(), *(one.grad for one in inputs if one.grad is not None)]
    return [far(one, other) for one, other in zip(found, _expected(scale), strict=True)]


@case
def attention() -> dict[str, Any]:
    found: dict[str, Any] = {}
    inputs = _on("xla")
    for one in inputs:
        xs.mark_sharding(one, MESH, SPEC)
    ids = IDS.to("xla")
    output = flash_attention(*inputs, True, ids, ids, 0.3, partition_spec=SPEC, mesh=MESH)
    found["gathers"] = "all-gather" in _get_xla_tensors_hlo([output])
    found["flash"] = _errors(output, inputs, 0.3)
    config = SplashAttentionConfig(mesh=str(MESH), qkv_partition_spec=SPEC, segment_ids_partition_spec=("data", None))
    inputs = _on("xla")
    found["splash"] = _errors(splash_attention(*inputs, config, ids), inputs, 1.0)
    found["bias"] = _with_bias()
    try:
        flash_attention(*_on("xla"), partition_spec=("rows",), mesh=MESH)
    except ValueError as error:
        found["wrong axis"] = str(error)
    return found


def _with_bias() -> list[float]:
    """The errors of output and gradients with one bias for all batches, divided by heads."""
    results = []
    for device in ("cpu", "xla"):
        q, k, v = _on(device)
        bias = torch.linspace(-1, 1, 72).reshape(1, 2, 6, 6).to(device).requires_grad_()
        if device == "cpu":
            output = torch.softmax((q @ k.mT + bias) * 0.3, -1) @ v
        else:
            output = flash_attention(q, k, v, sm_scale=0.3, ab=bias, partition_spec=SPEC, mesh=MESH)
        output.square().sum().backward()
        results.append([output.detach(), *(one.grad for one in (q, k, v, bias) if one.grad is not None)])
    return [far(one, other) for one, other in zip(*results[::-1], strict=True)]


@case
def other_meshes() -> dict[str, Any]:
    found: dict[str, Any] = {}
    turned = xs.Mesh([1, 0, 3, 2, 5, 4, 7, 6], (4, 2), ("data", "heads"))
    for name, mesh, spec in (("order", turned, SPEC), ("length", MESH, (None, None, "data", None)), ("short", MESH, ("data",))):
        inputs, ids = _on("xla"), IDS.to("xla")
        found[name] = _errors(flash_attention(*inputs, True, ids, ids, 0.3, partition_spec=spec, mesh=mesh), inputs, 0.3)
    xs.set_global_mesh(MESH)
    uneven = torch.randn(3, 2, 6, 8, generator=DRAW)
    expected = torch.nn.functional.scaled_dot_product_attention(uneven, uneven, uneven, scale=1.0)
    found["uneven"] = far(flash_attention(*[uneven.to("xla")] * 3, partition_spec=SPEC), expected)
    wrapped = [xs.mark_sharding(one.to("xla"), MESH, SPEC) for one in INPUTS]
    found["wrapped"] = far(flash_attention(*wrapped, True, partition_spec=SPEC), _causal())
    xs.set_global_mesh(None)
    return found


def _causal() -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(*INPUTS, is_causal=True, scale=1.0)

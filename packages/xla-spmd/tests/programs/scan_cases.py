"""Loops over layers and data that are sharded over a mesh, beside the same on the CPU."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import torch
from functorch.compile import min_cut_rematerialization_partition

import torch_xla
import torch_xla.distributed.spmd as xs
from harness import case, far, text
from torch_xla.core.xla_builder import call_jax
from torch_xla.experimental.assume_pure import assume_pure
from torch_xla.experimental.fori_loop import fori_loop
from torch_xla.experimental.gradient_accumulation import gradient_accumulation
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import scan_layers
from xla_core.abi.graph import Graph, register_wrapper
from xla_core.abi.tensors import buffer_of

MESH = xs.Mesh(range(8), (4, 2), ("data", "model"))
BATCH = ("data", None, None)
Mark = Callable[[torch.Tensor], torch.Tensor]


class Block(torch.nn.Module):
    """A feed-forward part beside a shortcut. mark: what is done with its hidden values on the mesh."""

    def __init__(self, mark: Mark = lambda hidden: hidden) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)
        self.mark = mark

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)
        return x + self.down(torch.tanh(self.mark(hidden) if hidden.device.type == "xla" else hidden))


torch.manual_seed(0)
REFERENCE = [Block() for _ in range(4)]
INPUT = torch.randn(8, 5, 8)


def _expected() -> list[torch.Tensor]:
    """The output and all gradients."""
    layers = copy.deepcopy(REFERENCE)
    x = INPUT
    for layer in layers:
        x = layer(x)
    x.square().mean().backward()
    return [x.detach(), *(param.grad for layer in layers for param in layer.parameters() if param.grad is not None)]


def _layers(mark: Mark | None = None, sharded: bool = False) -> list[Block]:
    layers = [copy.deepcopy(layer).to("xla") for layer in REFERENCE]
    for layer in layers:
        layer.mark = mark or layer.mark
        if sharded:
            for tensor, spec in ((layer.up.weight, ("model", None)), (layer.up.bias, ("model",)), (layer.down.weight, (None, "model"))):
                xs.mark_sharding(tensor, MESH, spec)
    return layers


def _trained(layers: list[Block], x: torch.Tensor, **options: Any) -> list[float]:
    """How far output and gradients are from those of the CPU."""
    result = scan_layers(layers, x, **options)
    result.square().mean().backward()
    torch_xla.sync()
    found = [result, *(param.grad for layer in layers for param in layer.parameters() if param.grad is not None)]
    return [far(xs.unwrap_sharded_tensor(one), other) for one, other in zip(found, _expected(), strict=True)]


@contextmanager
def _texts() -> Iterator[list[str]]:
    """The compiled text of each program that runs meanwhile."""
    found: list[str] = []

    def wrapper(graph: Graph, executable: Any) -> Any:
        def run(*arguments: Any) -> Any:
            found.append(executable.lower(*arguments).compile().as_text())
            return executable(*arguments)

        return run

    remove = register_wrapper(wrapper)
    yield found
    remove()


@case
def sharded_layers() -> dict[str, Any]:
    layers, x = _layers(sharded=True), INPUT.to("xla")
    xs.mark_sharding(x, MESH, BATCH)
    torch_xla.sync()
    with _texts() as texts:
        errors = _trained(layers, x, is_layer_pure=True)
    program = max(texts, key=len)
    weight, grad = layers[1].up.weight, layers[1].up.weight.grad
    assert grad is not None
    optimizer = torch.optim.SGD([param for layer in layers for param in layer.parameters()], 0.1)
    before, part = text(weight), list(buffer_of(grad).addressable_shards[0].data.shape)
    optimizer.step()
    torch_xla.sync()
    expected = REFERENCE[1].up.weight.detach() - 0.1 * _expected()[5]
    return {
        "errors": errors,
        "gathers": len(re.findall(r" (?:all-gather|all-to-all|collective-permute)(?:-start)?\(", program)),
        "whole": program.count("f32[4,32,8]"),  # all layers' weights: no device has more than its part
        "parts": program.count("f32[4,16,8]"),
        "part of a gradient": part,
        "kept": before == text(weight) != "",
        "updated": far(weight.detach(), expected),
    }


@case
def marks_inside() -> dict[str, Any]:
    ways: dict[str, Mark] = {
        "in place": lambda hidden: (xs.mark_sharding(hidden, MESH, BATCH), hidden)[1],
        "wrapper": lambda hidden: xs.mark_sharding(hidden, MESH, BATCH),
        "with gradients": lambda hidden: xs.mark_sharding_with_gradients(hidden, MESH, BATCH),
    }
    wrapped = xs.mark_sharding(INPUT.to("xla"), MESH, BATCH)
    found: dict[str, Any] = {name: max(_trained(_layers(way), wrapped)) for name, way in ways.items()}
    for name, way in ways.items():
        layers = _layers(way)
        found[f"{name}, partitioned"] = max(_trained(layers, wrapped, partition_fn=min_cut_rematerialization_partition))
    return found


@case
def sharded_tensors() -> dict[str, Any]:
    x, weight = torch.randn(3, 8, 8), torch.randn(8, 8)
    results: list[list[torch.Tensor]] = []
    for on_mesh in (False, True):
        data, plain = ((one.to("xla") if on_mesh else one.clone()) for one in (x, weight))
        leaf = xs.mark_sharding(plain, MESH, ("data", "model")) if on_mesh else plain
        leaf.requires_grad_()
        data = xs.mark_sharding(data, MESH, BATCH) if on_mesh else data
        if on_mesh:
            carry, _ = scan(lambda c, part, w=leaf: (torch.tanh(c @ w + part), None), leaf, data)
            pure = assume_pure(lambda w, part: w @ part)(leaf, leaf)
            loop = fori_loop(0, 2, lambda v: v * 2, data)[1]
            sine = call_jax(jnp.sin, (leaf,))
            loss = gradient_accumulation(lambda part: part.sum(), (data,), torch.nn.Linear(1, 1).to("xla"))
        else:
            carry = leaf
            for part in data:
                carry = torch.tanh(carry @ leaf + part)
            pure, loop, sine, loss = leaf @ leaf, data * 4, leaf.sin(), data.sum() / 3
        (carry.sum() + pure.sum() + sine.sum()).backward()
        assert leaf.grad is not None
        results.append([carry, pure, loop, sine, loss, xs.unwrap_sharded_tensor(leaf.grad)])
    return {"errors": [far(one, other) for one, other in zip(results[1], results[0], strict=True)]}

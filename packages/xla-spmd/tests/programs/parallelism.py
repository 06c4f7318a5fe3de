"""Trains a transformer block under the usual kinds of parallelism over eight devices, and hand-written in JAX under the same; prints JSON.

Of each: losses, the collectives of the compiled step, and the share of some tensors that each device holds.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from xla_core.abi.graph import Graph, register_wrapper
from xla_core.abi.tensors import buffer_of

BATCH, TOKENS, WIDTH, HEADS, STEPS, RATE = 16, 8, 64, 8, 3, 0.01
SHAPES = {"query": (1, 1), "key": (1, 1), "value": (1, 1), "proj": (1, 1), "up": (4, 1), "down": (1, 4)}  # [out, in] in WIDTHs
COLUMNS = ("query", "key", "value", "up")  # tensor parallel: outputs are sharded; of the others, what is summed over

Spec = tuple[Any, ...]
Params = dict[str, Array]
Mark = Callable[[Any, Spec], Any]


class Parallelism:
    """A mesh, and the axis of it that shards the batch, the weights (FSDP), the products (Megatron)."""

    def __init__(self, sizes: dict[str, int], batch: str | None = None, fsdp: str | None = None, tensor: str | None = None) -> None:
        self.sizes = sizes
        self.batch: Spec = (batch, None, None)
        self.inner: Spec = (batch, None, tensor)
        self.weights: dict[str, Spec] = {name: (tensor, fsdp) if name in COLUMNS else (fsdp, tensor) for name in SHAPES}


WAYS = {
    "data": Parallelism({"data": 8}, batch="data"),
    "tensor": Parallelism({"tensor": 8}, tensor="tensor"),
    "fsdp": Parallelism({"fsdp": 8}, batch="fsdp", fsdp="fsdp"),
    "fsdp and tensor": Parallelism({"fsdp": 4, "tensor": 2}, batch="fsdp", fsdp="fsdp", tensor="tensor"),
}


def collectives(text: str) -> dict[str, Any]:
    """Of a compiled program: how often each collective is called, and the sizes of what is gathered, in elements."""
    found = re.findall(r"= (\(.*?\)|\S+) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", text)
    gathered = [re.findall(r"\[([\d,]*)\]", shape) for shape, name in found if name == "all-gather"]
    sizes = sorted(int(np.prod([int(size) for size in shape.split(",") if size])) for shapes in gathered for shape in shapes)
    return {"counts": dict(Counter(name for _, name in found)), "gathered": sizes}


@contextmanager
def texts_of_programs() -> Iterator[list[str]]:
    """The compiled text of each program that runs meanwhile, in order of their first executions."""
    found: list[str] = []

    def wrapper(graph: Graph, executable: Any) -> Any:
        seen: list[None] = []

        def run(*arguments: Any) -> Any:
            if not seen:
                seen.append(None)
                found.append(executable.lower(*arguments).compile().as_text())
            return executable(*arguments)

        return run

    remove = register_wrapper(wrapper)
    yield found
    remove()


def block_torch(params: dict[str, torch.Tensor], x: torch.Tensor, mark: Mark, way: Parallelism) -> torch.Tensor:
    """The block in torch."""
    heads = [F.linear(x, params[name]).unflatten(2, (HEADS, -1)).transpose(1, 2) for name in ("query", "key", "value")]
    mixed = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
    hidden = mark(x + F.linear(mixed, params["proj"]), way.batch)
    inner = mark(F.relu(F.linear(hidden, params["up"])), way.inner)
    return hidden + F.linear(inner, params["down"])


def block_jax(params: Params, x: Array, mark: Mark, way: Parallelism) -> Array:
    """The same in JAX."""
    heads = [(x @ params[name].T).reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2) for name in ("query", "key", "value")]
    query, key, value = heads
    scores = query @ key.swapaxes(-1, -2) * (WIDTH // HEADS) ** -0.5
    causal = jnp.tril(jnp.ones((TOKENS, TOKENS), dtype=bool))
    mixed = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1) @ value
    hidden = mark(x + mixed.swapaxes(1, 2).reshape(x.shape) @ params["proj"].T, way.batch)
    inner = mark(jax.nn.relu(hidden @ params["up"].T), way.inner)
    return hidden + inner @ params["down"].T


def start() -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """Weights, inputs, targets."""
    torch.manual_seed(0)
    params = {name: torch.randn(rows * WIDTH, columns * WIDTH) * 0.1 for name, (rows, columns) in SHAPES.items()}
    return params, torch.randn(BATCH, TOKENS, WIDTH), torch.randn(BATCH, TOKENS, WIDTH)


def share(tensor: torch.Tensor) -> float:
    """The fraction of a tensor that each device holds; all must hold equally much."""
    shards = buffer_of(tensor).addressable_shards
    (nbytes,) = {shard.data.nbytes for shard in shards}
    assert len(shards) == 8
    return float(nbytes / tensor.nbytes)


def train_torch(params: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor, mark: Mark, way: Parallelism) -> Iterator[Any]:
    """Loss, optimizer and marked activations of each step."""
    optimizer = torch.optim.Adam(params.values(), lr=RATE)
    for _ in range(STEPS):
        marked: list[torch.Tensor] = []

        def noted(value: torch.Tensor, spec: Spec, marked: list[torch.Tensor] = marked) -> torch.Tensor:
            marked.append(mark(value, spec).detach())
            return value

        optimizer.zero_grad(set_to_none=True)
        loss = (block_torch(params, x, noted, way) - y).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.detach(), optimizer, marked


def on_cpu() -> list[float]:
    """The losses of plain torch."""
    params, x, y = start()
    params = {name: value.requires_grad_() for name, value in params.items()}
    return [loss.item() for loss, _, _ in train_torch(params, x, y, lambda value, spec: value, WAYS["data"])]


def ours(way: Parallelism) -> dict[str, Any]:
    """What it makes of the step."""
    mesh = xs.Mesh(range(8), tuple(way.sizes.values()), tuple(way.sizes))
    params, x, y = start()
    params = {name: torch.nn.Parameter(value.to("xla")) for name, value in params.items()}
    for name, value in params.items():
        xs.mark_sharding(value, mesh, way.weights[name])
    spec = xs.ShardingSpec(mesh, way.batch)
    x, y = spec.upload(x), spec.upload(y)

    def mark(value: torch.Tensor, wanted: Spec) -> torch.Tensor:
        xs.mark_sharding(value, mesh, wanted)
        return value

    found: dict[str, Any] = {"losses": []}
    for loss, optimizer, marked in train_torch(params, x, y, mark, way):
        with texts_of_programs() as texts:
            torch_xla.sync()
        if texts:
            found |= collectives(texts[-1])
        found["losses"].append(loss.item())
        found["shares"] = {
            "weights": {name: share(value) for name, value in params.items()},
            "gradients": {name: share(value.grad) for name, value in params.items() if value.grad is not None},
            "moments": {name: share(optimizer.state[value]["exp_avg_sq"]) for name, value in params.items()},
            "activations": [share(value) for value in marked],
        }
    return found


def by_hand(way: Parallelism) -> dict[str, Any]:
    """The same step in JAX: weights and moments sharded alike, the same activations constrained."""
    mesh = Mesh(np.array(jax.devices()).reshape(tuple(way.sizes.values())), tuple(way.sizes))

    def over(spec: Spec) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*spec))

    def mark(value: Array, spec: Spec) -> Array:
        return jax.lax.with_sharding_constraint(value, over(spec))

    def loss_of(params: Params, x: Array, y: Array) -> Array:
        return jnp.square(block_jax(params, x, mark, way) - y).mean()

    shardings = {name: over(spec) for name, spec in way.weights.items()}

    @partial(jax.jit, out_shardings=(shardings, shardings, shardings, None, None), donate_argnums=(0, 1, 2))
    def step(params: Params, first: Params, second: Params, count: Array, x: Array, y: Array) -> tuple[Any, ...]:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        count = count + 1
        first = {name: 0.9 * value + 0.1 * grads[name] for name, value in first.items()}
        second = {name: 0.999 * value + 0.001 * grads[name] ** 2 for name, value in second.items()}
        rate, root = RATE / (1 - 0.9**count), jnp.sqrt(1 - 0.999**count)
        moved = {name: value - rate * first[name] / (jnp.sqrt(second[name]) / root + 1e-8) for name, value in params.items()}
        return moved, first, second, count, loss

    given, x, y = start()
    params = {name: jax.device_put(value.numpy(), shardings[name]) for name, value in given.items()}
    first = {name: jax.device_put(np.zeros(value.shape, np.float32), shardings[name]) for name, value in params.items()}
    second = {name: jax.device_put(np.zeros(value.shape, np.float32), shardings[name]) for name, value in params.items()}
    batch = [jax.device_put(value.numpy(), over(way.batch)) for value in (x, y)]
    count = jax.device_put(np.float32(0), over(()))
    text = step.lower(params, first, second, count, *batch).compile().as_text()
    losses = []
    for _ in range(STEPS):
        params, first, second, count, loss = step(params, first, second, count, *batch)
        losses.append(float(loss))
    return {"losses": losses, **collectives(text)}


def main() -> None:
    xr.use_spmd()
    torch_xla.device()
    found = {name: {"ours": ours(way), "by hand": by_hand(way)} for name, way in WAYS.items()}
    print(json.dumps({"expected": on_cpu(), "ways": found}))


if __name__ == "__main__":
    main()

"""The GPT of `examples/gpt_spmd.py` over a mesh of devices: on `xla` by its own shardings, and by hand in JAX under the same shardings."""

import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import Tensor

import models_jax
import models_torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from gpt_spmd import AXES as AXES
from gpt_spmd import BATCH_AXES, BYTES, Gpt, Size, Spec, partition_spec_of, shard_parameters

RATE = 1e-3
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def collectives(text: str) -> dict[str, int]:
    """How often each collective is called in a compiled program."""
    found = Counter(re.findall(rf"= (?:\(.*?\)|\S+) ({'|'.join(COLLECTIVES)})(?:-start)?\(", text))
    return {name: found[name] for name in COLLECTIVES if found[name]}


def start(size: Size) -> tuple[Gpt, Tensor, Tensor]:
    """A model, inputs and labels, always the same."""
    torch.manual_seed(0)
    text = torch.randint(BYTES, (size.batch, size.tokens + 1))
    return Gpt(size), text[:, :-1].contiguous(), text[:, 1:].contiguous()


def on_xla(size: Size, axes: dict[str, int], captured: bool = False) -> Callable[[], Tensor]:
    """The step on `xla`, recorded each time or captured."""
    import torch_xla
    import torch_xla.distributed.spmd as xs

    mesh = xs.Mesh(range(int(np.prod(list(axes.values())))), tuple(axes.values()), tuple(axes))
    model, inputs, labels = start(size)
    model = model.to(torch_xla.device())
    shard_parameters(model, mesh)
    spec = xs.ShardingSpec(mesh, (BATCH_AXES, None))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    batch = spec.upload(inputs), spec.upload(labels)
    if captured:
        return torch_xla.compile(models_torch.training_step(model, optimizer, *batch, lambda: None), capture=True)
    return models_torch.training_step(model, optimizer, *batch, torch_xla.sync)


def attention(params: models_jax.Params, name: str, hidden: Array, heads: int) -> Array:
    """Causal self-attention; `name` ends in a dot."""
    batch, tokens, width = hidden.shape
    parts = [models_jax.linear(params, name + part, hidden).reshape(batch, tokens, heads, -1) for part in ("query", "key", "value")]
    query, key, value = (part.swapaxes(1, 2) for part in parts)
    scores = (query @ key.swapaxes(-1, -2)) * (width // heads) ** -0.5
    causal = jnp.tril(jnp.ones((tokens, tokens), dtype=bool))
    mixed = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1) @ value
    return models_jax.linear(params, f"{name}proj", mixed.swapaxes(1, 2).reshape(batch, tokens, width))


def forward(size: Size, mark: Callable[[Array], Array], params: models_jax.Params, text: Array) -> Array:
    """Bytes → logits."""
    hidden = mark(params["embed.weight"][text] + params["position"])
    for index in range(size.layers):
        name = f"layers.{index}."
        hidden = hidden + attention(params, name, models_jax.layer_norm(params, f"{name}norm1", hidden), size.heads)
        inner = models_jax.linear(params, f"{name}up", models_jax.layer_norm(params, f"{name}norm2", hidden))
        hidden = mark(hidden + models_jax.linear(params, f"{name}down", jax.nn.gelu(inner, approximate=True)))
    return models_jax.linear(params, "out", models_jax.layer_norm(params, "norm", hidden))


def in_jax(size: Size, axes: dict[str, int]) -> tuple[Callable[[], Array], Callable[[], object], dict[str, int]]:
    """The step by hand, what blocks until all is done, and the step's collectives."""
    mesh = Mesh(np.array(jax.devices("cpu")).reshape(tuple(axes.values())), tuple(axes))
    rule = models_jax.adam(RATE)

    def over(spec: Spec) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*spec))

    def mark(hidden: Array) -> Array:
        return jax.lax.with_sharding_constraint(hidden, over((BATCH_AXES, None, None)))

    def loss_of(params: models_jax.Params, text: Array, labels: Array) -> Array:
        return models_jax.cross_entropy(forward(size, mark, params, text), labels)

    model, inputs, labels = start(size)
    shardings = {name: over(partition_spec_of(name)) for name, _ in model.named_parameters()}
    params = {name: jax.device_put(value.detach().numpy(), shardings[name]) for name, value in model.named_parameters()}
    state = jax.device_put(rule.start(params, {}), {"first": shardings, "second": shardings, "buffers": {}, "count": {"count": over(())}})
    state_shardings = jax.tree.map(lambda value: value.sharding, state)
    batch = [jax.device_put(part.numpy().astype(np.int32), over((BATCH_AXES, None))) for part in (inputs, labels)]

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(shardings, state_shardings, None))
    def whole(params: models_jax.Params, state: models_jax.State, text: Array, labels: Array) -> tuple[Any, ...]:
        loss, grads = jax.value_and_grad(loss_of)(params, text, labels)
        return (*rule.update(params, grads, state), loss)

    used = collectives(whole.lower(params, state, *batch).compile().as_text() or "")
    held: list[Any] = [params, state]

    def step() -> Array:
        held[0], held[1], loss = whole(held[0], held[1], *batch)
        return cast(Array, loss)

    return step, lambda: jax.block_until_ready(held), used

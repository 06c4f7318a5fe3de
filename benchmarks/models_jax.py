"""The benchmark models written by hand in JAX: one jitted step with donated state, NCHW convolutions, weights named as in torch."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from models_torch import GptSize

Params = dict[str, Array]
"""Weights under their torch names, in torch's layouts."""
State = dict[str, Params]
"""The optimizer's slots and step count, and `buffers` (running statistics)."""
Model = Callable[[Params, Params, Array], tuple[Array, Params]]
"""(weights, buffers, inputs) → (logits, new buffers)."""
Update = Callable[[Params, Params, State], tuple[Params, State]]
"""(weights, gradients, state) → (weights, state)."""
Steps = tuple[Callable[[], Array], Callable[[], object]]
"""What launches a step, and what blocks until all that was launched is done."""


def linear(params: Params, name: str, value: Array) -> Array:
    """`value @ weight.T + bias`; the bias is optional."""
    product = value @ params[f"{name}.weight"].T
    return product + params[f"{name}.bias"] if f"{name}.bias" in params else product


def conv(params: Params, name: str, maps: Array, stride: int = 1, padding: int = 0) -> Array:
    """NCHW convolution; the bias is optional."""
    result = lax.conv_general_dilated(
        maps, params[f"{name}.weight"], (stride, stride), [(padding, padding)] * 2, dimension_numbers=("NCHW", "OIHW", "NCHW")
    )
    return result + params[f"{name}.bias"][:, None, None] if f"{name}.bias" in params else result


def mlp(params: Params, buffers: Params, inputs: Array) -> tuple[Array, Params]:
    """Three linear layers with ReLU."""
    hidden = jax.nn.relu(linear(params, "0", inputs))
    return linear(params, "4", jax.nn.relu(linear(params, "2", hidden))), buffers


def cnn(params: Params, buffers: Params, images: Array) -> tuple[Array, Params]:
    """Two convolutions, 2×2 maximum, two linear layers."""
    maps = jax.nn.relu(conv(params, "conv2", jax.nn.relu(conv(params, "conv1", images))))
    pooled = lax.reduce_window(maps, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    flat = pooled.reshape(pooled.shape[0], -1)
    return linear(params, "out", jax.nn.relu(linear(params, "hidden", flat))), buffers


def batch_norm(params: Params, buffers: Params, updated: Params, name: str, maps: Array) -> Array:
    """Normalises by the batch's statistics and moves the running ones by 0.1 into `updated`."""
    mean = maps.mean((0, 2, 3))
    variance = maps.var((0, 2, 3))
    count = maps.size // maps.shape[1]
    updated[f"{name}.running_mean"] = 0.9 * buffers[f"{name}.running_mean"] + 0.1 * lax.stop_gradient(mean)
    unbiased = lax.stop_gradient(variance) * (count / (count - 1))
    updated[f"{name}.running_var"] = 0.9 * buffers[f"{name}.running_var"] + 0.1 * unbiased
    scale = params[f"{name}.weight"] * lax.rsqrt(variance + 1e-5)
    return maps * scale[:, None, None] + (params[f"{name}.bias"] - mean * scale)[:, None, None]


def resnet18(params: Params, buffers: Params, images: Array) -> tuple[Array, Params]:
    """3×3 stem, residual blocks (eight, in full size), global mean, linear."""
    updated: Params = {}
    maps = jax.nn.relu(batch_norm(params, buffers, updated, "bn", conv(params, "stem", images, padding=1)))
    for index in itertools.takewhile(lambda index: f"blocks.{index}.conv1.weight" in params, itertools.count()):
        name, stride = f"blocks.{index}", 2 if index and index % 2 == 0 else 1
        inner = jax.nn.relu(batch_norm(params, buffers, updated, f"{name}.bn1", conv(params, f"{name}.conv1", maps, stride, 1)))
        inner = batch_norm(params, buffers, updated, f"{name}.bn2", conv(params, f"{name}.conv2", inner, padding=1))
        if f"{name}.short.0.weight" in params:
            maps = batch_norm(params, buffers, updated, f"{name}.short.1", conv(params, f"{name}.short.0", maps, stride))
        maps = jax.nn.relu(inner + maps)
    return linear(params, "out", maps.mean((2, 3))), updated


def layer_norm(params: Params, name: str, value: Array) -> Array:
    """Over the last dimension."""
    mean = value.mean(-1, keepdims=True)
    centred = value - mean
    normal = centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return normal * params[f"{name}.weight"] + params[f"{name}.bias"]


def attention(params: Params, name: str, hidden: Array, heads: int) -> Array:
    """Causal self-attention with one fused projection."""
    batch, tokens, width = hidden.shape
    parts = linear(params, f"{name}.qkv", hidden).reshape(batch, tokens, 3, heads, width // heads)
    query, key, value = jnp.moveaxis(parts, (2, 3), (0, 2))
    scores = (query @ key.swapaxes(-1, -2)) * (width // heads) ** -0.5
    causal = jnp.tril(jnp.ones((tokens, tokens), dtype=bool))
    mixed = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1) @ value
    return linear(params, f"{name}.proj", mixed.swapaxes(1, 2).reshape(batch, tokens, width))


def gpt(size: GptSize) -> Model:
    """The language model of that size."""

    def forward(params: Params, buffers: Params, tokens: Array) -> tuple[Array, Params]:
        hidden = params["embed.weight"][tokens] + params["position"]
        for index in range(size.layers):
            name = f"layers.{index}"
            hidden = hidden + attention(params, name, layer_norm(params, f"{name}.norm1", hidden), size.heads)
            inner = jax.nn.gelu(linear(params, f"{name}.up", layer_norm(params, f"{name}.norm2", hidden)), approximate=True)
            hidden = hidden + linear(params, f"{name}.down", inner)
        return linear(params, "out", layer_norm(params, "norm", hidden)), buffers

    return forward


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimizer: its update, and the slots that it keeps per weight."""

    update: Update
    slots: tuple[str, ...]

    def start(self, params: Params, buffers: Params) -> State:
        """Zeroed slots, the step count, and the model's buffers."""
        slots = {slot: {name: jnp.zeros_like(value) for name, value in params.items()} for slot in self.slots}
        return {**slots, "buffers": buffers, "count": {"count": jnp.zeros((), dtype=jnp.float32)}}


def sgd(rate: float, momentum: float = 0.0) -> Rule:
    """torch's SGD: without momentum it keeps no slots."""

    def plain(params: Params, grads: Params, state: State) -> tuple[Params, State]:
        return {k: p - rate * grads[k] for k, p in params.items()}, state

    def heavy(params: Params, grads: Params, state: State) -> tuple[Params, State]:
        moving = {k: momentum * state["momentum"][k] + g for k, g in grads.items()}
        return {k: p - rate * moving[k] for k, p in params.items()}, {**state, "momentum": moving}

    return Rule(heavy, ("momentum",)) if momentum else Rule(plain, ())


def adam(rate: float, decay: float = 0.0) -> Rule:
    """torch's Adam, or AdamW where `decay` is not 0."""
    beta1, beta2, epsilon = 0.9, 0.999, 1e-8

    def update(params: Params, grads: Params, state: State) -> tuple[Params, State]:
        count = state["count"]["count"] + 1
        first = {k: beta1 * state["first"][k] + (1 - beta1) * g for k, g in grads.items()}
        second = {k: beta2 * state["second"][k] + (1 - beta2) * g * g for k, g in grads.items()}
        step_size = rate / (1 - beta1**count)
        root = jnp.sqrt(1 - beta2**count)
        steps = {k: step_size * first[k] / (jnp.sqrt(second[k]) / root + epsilon) for k in params}  # wide, as the count is
        moved = {k: p * (1 - rate * decay) - steps[k].astype(p.dtype) for k, p in params.items()}
        return moved, {**state, "first": first, "second": second, "count": {"count": count}}

    return Rule(update, ("first", "second"))


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Mean over all labels."""
    flat = logits.reshape(-1, logits.shape[-1])
    logarithms = jax.nn.log_softmax(flat, axis=-1)
    return -jnp.take_along_axis(logarithms, labels.reshape(-1, 1), axis=1).mean()


def training_program(model: Model, rule: Rule) -> Any:
    """The jitted step: weights and state, which are donated, inputs, labels → weights, state, loss."""

    def loss_of(weights: Params, buffers: Params, batch: Array, targets: Array) -> tuple[Array, Params]:
        logits, updated = model(weights, buffers, batch)
        return cross_entropy(logits, targets), updated

    def whole(weights: Params, slots: State, batch: Array, targets: Array) -> tuple[Params, State, Array]:
        (loss, updated), grads = jax.value_and_grad(loss_of, has_aux=True)(weights, slots["buffers"], batch, targets)
        moved, renewed = rule.update(weights, grads, slots)
        return moved, {**renewed, "buffers": updated}, loss

    return jax.jit(whole, donate_argnums=(0, 1))


def training_step(model: Model, rule: Rule, params: Params, buffers: Params, inputs: Array, labels: Array) -> Steps:
    """A step returns the loss."""
    jitted = training_program(model, rule)
    held: list[Any] = [params, rule.start(params, buffers)]

    def step() -> Array:
        held[0], held[1], loss = jitted(held[0], held[1], inputs, labels)
        return cast(Array, loss)

    return step, lambda: jax.block_until_ready(held)


def decoding_program(model: Model) -> Any:
    """The jitted step: weights, a window of fixed length, which is donated → the window with the likeliest next token, that token."""

    def whole(weights: Params, tokens: Array) -> tuple[Array, Array]:
        logits, _ = model(weights, {}, tokens)
        token = jnp.argmax(logits[:, -1], axis=-1, keepdims=True).astype(tokens.dtype)
        return jnp.concatenate([tokens[:, 1:], token], axis=1), token

    return jax.jit(whole, donate_argnums=1)


def decoding_step(model: Model, params: Params, window: Array) -> Steps:
    """A step appends the likeliest next token to a window of fixed length and returns that token [batch, 1]."""
    jitted = decoding_program(model)
    held = [window]

    def step() -> Array:
        held[0], token = jitted(params, held[0])
        return cast(Array, token)

    return step, lambda: jax.block_until_ready(held)

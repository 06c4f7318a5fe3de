"""The larger models of `targets.py` in torch and by hand in JAX, weights named as in torch: ResNet-50, and one layer of Llama-3-8B."""

from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from jax import Array, lax
from torch import Tensor, nn

from models_jax import Model, Params, batch_norm, conv, linear

STAGES = (3, 4, 6, 3)
"""Blocks of the four stages of ResNet-50."""


class Bottleneck(nn.Module):
    """1×1, 3×3 (with the stride) and 1×1 convolutions, the last one to four times the channels, and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels_in, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv3, self.bn3 = nn.Conv2d(channels, 4 * channels, 1, bias=False), nn.BatchNorm2d(4 * channels)
        self.short = nn.Sequential()
        if stride != 1 or channels_in != 4 * channels:
            self.short = nn.Sequential(nn.Conv2d(channels_in, 4 * channels, 1, stride, bias=False), nn.BatchNorm2d(4 * channels))

    def forward(self, maps: Tensor) -> Tensor:
        inner = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(maps))))))
        return F.relu(self.bn3(self.conv3(inner)) + self.short(maps))


class ResNet50(nn.Module):
    """The 50-layer residual network for 224×224 images (He et al. 2015; strides in the 3×3 convolutions)."""

    def __init__(self, width: int = 64, stages: tuple[int, ...] = STAGES, classes: int = 1000) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        channels_in = width
        for stage, count in enumerate(stages):
            for number in range(count):
                blocks.append(Bottleneck(channels_in, width << stage, 2 if stage and not number else 1))
                channels_in = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.out = nn.Linear(channels_in, classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = F.max_pool2d(F.relu(self.bn(self.stem(images))), 3, 2, 1)
        return cast(Tensor, self.out(self.blocks(maps).mean((2, 3))))


def resnet50(stages: tuple[int, ...] = STAGES) -> Model:
    """The same in JAX."""

    def forward(params: Params, buffers: Params, images: Array) -> tuple[Array, Params]:
        updated: Params = {}
        maps = jax.nn.relu(batch_norm(params, buffers, updated, "bn", conv(params, "stem", images, 2, 3)))
        edges = [(0, 0), (0, 0), (1, 1), (1, 1)]
        maps = lax.reduce_window(maps, np.asarray(-np.inf, maps.dtype), lax.max, (1, 1, 3, 3), (1, 1, 2, 2), edges)
        strides = [2 if stage and not number else 1 for stage, count in enumerate(stages) for number in range(count)]
        for index, stride in enumerate(strides):
            name = f"blocks.{index}"
            inner = jax.nn.relu(batch_norm(params, buffers, updated, f"{name}.bn1", conv(params, f"{name}.conv1", maps)))
            inner = jax.nn.relu(batch_norm(params, buffers, updated, f"{name}.bn2", conv(params, f"{name}.conv2", inner, stride, 1)))
            inner = batch_norm(params, buffers, updated, f"{name}.bn3", conv(params, f"{name}.conv3", inner))
            if f"{name}.short.0.weight" in params:
                maps = batch_norm(params, buffers, updated, f"{name}.short.1", conv(params, f"{name}.short.0", maps, stride))
            maps = jax.nn.relu(inner + maps)
        return linear(params, "out", maps.mean((2, 3))), updated

    return forward


@dataclass(frozen=True, slots=True)
class LlamaSize:
    """Width of the hidden state and inside of the feed-forward part, heads of queries and of keys, tokens of a batch, words."""

    width: int = 4096
    inner: int = 14_336
    heads: int = 32
    key_heads: int = 8
    tokens: int = 4096
    words: int = 32_000

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.width // self.heads


THETA = 500_000.0
EPSILON = 1e-5


class Llama(nn.Module):
    """Tokens i64[batch, tokens] → logits [batch, tokens, words], through a single layer (Dubey et al. 2024)."""

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.size = size
        self.embed = nn.Embedding(size.words, size.width)
        self.norm1, self.norm2, self.norm = (nn.RMSNorm(size.width, EPSILON) for _ in range(3))
        self.query = nn.Linear(size.width, size.width, bias=False)
        self.key, self.value = (nn.Linear(size.width, size.key_heads * size.head, bias=False) for _ in range(2))
        self.proj = nn.Linear(size.width, size.width, bias=False)
        self.gate, self.up = (nn.Linear(size.width, size.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(size.inner, size.width, bias=False)
        self.out = nn.Linear(size.width, size.words, bias=False)

    def _turned(self, x: Tensor) -> Tensor:
        frequencies = THETA ** (-torch.arange(0, self.size.head, 2, device=x.device, dtype=torch.float32) / self.size.head)
        angles = torch.outer(torch.arange(x.shape[2], device=x.device, dtype=torch.float32), frequencies)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        left, right = x.chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    def _attention(self, hidden: Tensor) -> Tensor:
        batch, tokens, width = hidden.shape
        query, key, value = (
            part(hidden).view(batch, tokens, -1, self.size.head).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(self._turned(query), self._turned(key), value, is_causal=True, enable_gqa=True)
        return cast(Tensor, self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width)))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        hidden = hidden + self._attention(self.norm1(hidden))
        inner = self.norm2(hidden)
        hidden = hidden + self.down(F.silu(self.gate(inner)) * self.up(inner))
        return cast(Tensor, self.out(self.norm(hidden)))


def _rms_norm(params: Params, name: str, x: Array) -> Array:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + EPSILON)).astype(x.dtype) * params[f"{name}.weight"]


def _turned(x: Array) -> Array:
    """x: [batch, tokens, heads, head]."""
    frequencies = THETA ** (-jnp.arange(0, x.shape[-1], 2, dtype=jnp.float32) / x.shape[-1])
    angles = jnp.outer(jnp.arange(x.shape[1], dtype=jnp.float32), frequencies)[:, None, :]
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    left, right = jnp.split(x, 2, -1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def llama(size: LlamaSize) -> Model:
    """The same in JAX, with `jax.nn.dot_product_attention`."""

    def forward(params: Params, buffers: Params, tokens: Array) -> tuple[Array, Params]:
        hidden = params["embed.weight"][tokens]
        inner = _rms_norm(params, "norm1", hidden)
        query, key, value = (linear(params, name, inner).reshape(*tokens.shape, -1, size.head) for name in ("query", "key", "value"))
        mixed = jax.nn.dot_product_attention(_turned(query), _turned(key), value, is_causal=True)
        hidden = hidden + linear(params, "proj", mixed.reshape(*tokens.shape, size.width))
        inner = _rms_norm(params, "norm2", hidden)
        hidden = hidden + linear(params, "down", jax.nn.silu(linear(params, "gate", inner)) * linear(params, "up", inner))
        return linear(params, "out", _rms_norm(params, "norm", hidden)), buffers

    return forward

"""The benchmark models and training steps in plain torch; they run on `xla`, `cpu` and `cuda` as they are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class GptSize:
    """Sizes of the language model; heads are `width // 64` wide."""

    layers: int = 6
    width: int = 256
    tokens: int = 128
    vocabulary: int = 4096

    @property
    def heads(self) -> int:
        """Number of attention heads, 64 wide each where the width allows it."""
        return max(1, self.width // 64)


class Mlp(nn.Sequential):
    """64-256-256-10."""

    def __init__(self, width: int = 256) -> None:
        super().__init__(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


class Cnn(nn.Module):
    """28×28 → two 3×3 convolutions (32, 64) → pool → 128 → 10."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3)
        self.hidden = nn.Linear(2 * channels * 12 * 12, 128)
        self.out = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        maps = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(images)))), 2)
        return cast(Tensor, self.out(F.relu(self.hidden(maps.flatten(1)))))


class Block(nn.Module):
    """Two 3×3 convolutions with batch norm and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.short = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, maps: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(maps)))))
        return F.relu(inner + self.short(maps))


class ResNet18(nn.Module):
    """The 18-layer residual network in its form for 32×32 images: 3×3 stem, no pooling before the blocks (4 stages of 2)."""

    def __init__(self, width: int = 64, stages: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        channels_in = width
        for stage in range(stages):
            for place in range(2):
                blocks.append(Block(channels_in, width << stage, 2 if stage and not place else 1))
                channels_in = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.out = nn.Linear(channels_in, 10)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.blocks(F.relu(self.bn(self.stem(images))))
        return cast(Tensor, self.out(maps.mean((2, 3))))


class Layer(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm1 = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.proj = nn.Linear(size.width, size.width)
        self.norm2 = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, tokens, width = hidden.shape
        parts = self.qkv(self.norm1(hidden)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return hidden + cast(Tensor, self.down(F.gelu(self.up(self.norm2(hidden)), approximate="tanh")))


class Gpt(nn.Module):
    """Tokens i64[batch, tokens] → logits f32[batch, tokens, vocabulary]."""

    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.position = nn.Parameter(0.02 * torch.randn(size.tokens, size.width))
        self.layers = nn.Sequential(*(Layer(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.out = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.out(self.norm(self.layers(self.embed(tokens) + self.position))))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over all labels."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def training_step(
    model: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor, close: Callable[[], None],
    keep_gradients: bool = True,
) -> Callable[[], Tensor]:  # fmt: skip
    """A call runs forward, backward and the optimizer, ends the step by `close`, and returns the loss (not read).

    keep_gradients: until the next step begins; else they are dropped before `close`, and are no results of the step.
    """

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(inputs), labels)
        torch.autograd.backward(loss)
        optimizer.step()
        if not keep_gradients:
            optimizer.zero_grad(set_to_none=True)
        result = loss.detach()
        close()
        return result

    return step


def decoding_step(
    model: Callable[[Tensor], Tensor],
    window: Tensor,
    close: Callable[[], None],
    wrap: Callable[[Callable[[Tensor], tuple[Tensor, Tensor]]], Callable[[Tensor], tuple[Tensor, Tensor]]] = lambda decode: decode,
) -> Callable[[], Tensor]:
    """A call appends the likeliest next token to a window of fixed length (whose first one leaves) and returns that token i64[batch, 1].

    wrap: what is called in the place of the function from a window to the token and the next window.
    """
    state = [window]

    @wrap
    def decode(window: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            token = model(window)[:, -1].argmax(-1, keepdim=True)
            return token, torch.cat([window[:, 1:], token], 1)

    def step() -> Tensor:
        token, state[0] = decode(state[0])
        close()
        return token

    return step

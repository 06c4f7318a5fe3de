"""A GPT in torch whose attention divides by heads, for tensor parallelism among replicas."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True, slots=True)
class Size:
    """Of a model: layers, width, heads, tokens of a text, words."""

    width: int
    heads: int
    tokens: int
    layers: int = 2
    words: int = 256


class Block(nn.Module):
    """Attention and feed-forward, each with its norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.head = width // size.heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Over the heads that this replica has."""
        before = self.before(x)
        heads = [layer(before).unflatten(-1, (-1, self.head)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        x = x + self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        hidden: torch.Tensor = self.down(F.gelu(self.up(self.after(x))))
        return x + hidden


class GPT(nn.Module):
    """Blocks between an embedding and a head."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(size.words, size.width), nn.Embedding(size.tokens, size.width)
        self.blocks = nn.ModuleList([Block(size) for _ in range(size.layers)])
        self.head = nn.Linear(size.width, size.words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next words."""
        x = self.words(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits

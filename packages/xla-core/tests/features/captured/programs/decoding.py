"""Loops of decoding whose caches are at the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor, nn

LENGTH = 12


class Decoder(nn.Module):
    """One layer of attention over all tokens so far, whose keys and values are kept in tensors of a fixed size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(79)
        self.embed, self.project, self.out = nn.Embedding(7, 4), nn.Linear(4, 12), nn.Linear(4, 7)
        self.position = 0
        self.clear()

    def clear(self) -> None:
        """Forget all tokens, with new tensors."""
        device = self.out.weight.device
        self.keys, self.values = torch.zeros(LENGTH, 4, device=device), torch.zeros(LENGTH, 4, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.position = 0

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, open_to: Tensor) -> Tensor:
        """Logits for the next token."""
        scores = (keys @ query).masked_fill(~open_to, float("-inf"))
        return self.out(scores.softmax(0) @ values)  # type: ignore[no-any-return]


@program
def a_cache_with_a_position_on_the_device(capture: Capture) -> Iterator[Any]:
    """Keys are written where a tensor says, which each call raises in place; a new sequence begins at call 9 and again at 18."""
    model = Decoder().to("xla")
    model.clear()

    @capture
    @torch.no_grad()
    def decode(token: Tensor) -> Tensor:
        query, key, value = model.project(model.embed(token)).chunk(3)
        model.keys.index_copy_(0, model.place, key[None])
        model.values.index_copy_(0, model.place, value[None])
        logits = model.attend(query, model.keys, model.values, torch.arange(LENGTH, device="xla") <= model.place)
        model.place += 1
        return logits.argmax()

    token = torch.tensor(1).to("xla")
    for call in range(24):
        if call == 9:
            model.clear()
        if call == 18:
            for cache in (model.keys, model.values, model.place):
                cache.zero_()
        token = decode(token)
        yield token
        yield model.keys, model.place


@program
def a_cache_with_a_position_in_python(capture: Capture) -> Iterator[Any]:
    """The position is an integer that each call raises, and that indexes the cache; a new sequence begins after ten tokens."""
    model = Decoder().to("xla")
    model.clear()

    @capture
    @torch.no_grad()
    def decode(token: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value = model.project(model.embed(token)).chunk(3)
        model.keys[model.position] = key
        model.values[model.position] = value
        logits = model.attend(query, model.keys, model.values, torch.arange(LENGTH, device="xla") <= model.position)
        model.position += 1
        return logits.argmax(), logits

    token = torch.tensor(1).to("xla")
    for call in range(24):
        if call % 10 == 0:
            model.clear()
        token, logits = decode(token)
        yield logits, model.position
        yield model.keys


@program
def a_position_that_the_caller_gives(capture: Capture) -> Iterator[Any]:
    """The position is an argument, another integer at each call, and the caches are rebound by torch.where."""
    model = Decoder().to("xla")
    model.clear()

    @capture
    @torch.no_grad()
    def decode(token: Tensor, position: int) -> Tensor:
        query, key, value = model.project(model.embed(token)).chunk(3)
        places = torch.arange(LENGTH, device="xla")
        model.keys = torch.where((places == position)[:, None], key, model.keys)
        model.values = torch.where((places == position)[:, None], value, model.values)
        return model.attend(query, model.keys, model.values, places <= position)

    token = torch.tensor(3).to("xla")
    for call in range(24):
        logits = decode(token, call % LENGTH)
        token = logits.argmax()
        yield logits
    yield model.keys, model.values


@program(refused="shape|grow|each call|keep|kept|changes")
def a_cache_that_grows(capture: Capture) -> Iterator[Any]:
    """Keys and values of each token are put behind those before, so that shapes differ at each call."""
    model = Decoder().to("xla")
    model.keys = model.values = torch.zeros(0, 4, device="xla")

    @capture
    @torch.no_grad()
    def decode(token: Tensor) -> Tensor:
        query, key, value = model.project(model.embed(token)).chunk(3)
        model.keys, model.values = torch.cat([model.keys, key[None]]), torch.cat([model.values, value[None]])
        return model.attend(query, model.keys, model.values, torch.ones(len(model.keys), dtype=torch.bool, device="xla"))

    token = torch.tensor(2).to("xla")
    for _ in range(8):
        logits = decode(token)
        token = logits.argmax()
        yield logits
    yield model.keys


@program
def beams_whose_caches_are_reordered(capture: Capture) -> Iterator[Any]:
    """Caches are a list of tensors by layer at the caller, each call reorders all of them and gives back new ones."""
    torch.manual_seed(83)
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).to("xla")

    @capture
    def advance(x: Tensor, caches: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        kept = []
        with torch.no_grad():
            order = x.sum(1).argsort()
            for layer, (keys, values) in zip(layers, caches, strict=True):
                x = torch.tanh(layer(x) + keys)
                kept.append((keys[order] * 0.5 + x, values.index_select(0, order) + 1))
        return x, kept

    caches = [(torch.zeros(3, 4, device="xla"), torch.arange(12.0).reshape(3, 4).to("xla")) for _ in range(2)]
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to("xla")
    for call in range(22):
        x, caches = advance(x + 0.01 * call, caches)
        yield x, caches

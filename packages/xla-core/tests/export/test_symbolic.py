"""Exported programs whose inputs have open sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

from torch_xla import stablehlo
from xla_core.errors import UnsupportedOperationError

Shapes = tuple[tuple[int, ...], ...]


def exported(module: nn.Module | Callable[..., Any], args: tuple[Any, ...], dynamic: Any, **options: Any) -> stablehlo.StableHLOGraphModule:
    if not isinstance(module, nn.Module):
        module = Function(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, of its pytrees
        program = torch.export.export(module.eval(), args, dynamic_shapes=dynamic)
        return stablehlo.exported_program_to_stablehlo(program, stablehlo.StableHLOExportOptions(**options))


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Convolutional(nn.Module):
    """Open batch, height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.GroupNorm(2, 8)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(functional.adaptive_avg_pool2d(functional.silu(self.body(x)), 1).flatten(1))  # type: ignore[no-any-return]


class Language(nn.Module):
    """Open batch and length: embeddings, positions, causal attention, a mask from data, the last token's logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 16), nn.Embedding(64, 16)
        self.inner, self.outer = nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch, length = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(length, device=tokens.device))
        query, key, value = self.inner(self.norm(x)).view(batch, length, 4, 12).transpose(1, 2).chunk(3, dim=-1)
        seen = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril() & mask[:, None, None, :]
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        x = x + self.outer(mixed.transpose(1, 2).reshape(batch, length, 16))
        logits = x @ self.words.weight.t()
        return logits[:, -1].topk(3).values, functional.log_softmax(logits, -1).gather(2, tokens[..., None]).squeeze(-1).sum(1) / length


def _images(batch: int, height: int, width: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch, 3, height, width),)


def _tokens(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 11, (batch, length)), torch.arange(length).expand(batch, length) >= 1


_BATCH, _LENGTH = Dim("batch", max=32), Dim("length", max=64)


@pytest.mark.parametrize(
    ("module", "dynamic", "inputs", "sizes"),
    [
        (Convolutional, {"x": {0: _BATCH, 2: Dim("height", min=4), 3: Dim("width", min=4)}}, _images, [(2, 8, 8), (3, 10, 6), (1, 4, 9)]),
        (Language, {"tokens": {0: _BATCH, 1: _LENGTH}, "mask": {0: _BATCH, 1: _LENGTH}}, _tokens, [(2, 5), (3, 9), (1, 2)]),
    ],
    ids=["convolutional", "language"],
)
def test_one_program_for_all_sizes(
    module: type[nn.Module], dynamic: Any, inputs: Callable[..., tuple[torch.Tensor, ...]], sizes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = module().eval()
    exported(model, inputs(*sizes[0]), dynamic).save(str(tmp_path))
    loaded = stablehlo.StableHLOGraphModule.load(str(tmp_path))
    text = loaded.get_stablehlo_text()
    assert text is not None and "tensor<?x" in text
    for size in sizes:
        given = inputs(*size)
        with torch.no_grad():
            expected = model(*given)
        torch.testing.assert_close(torch.utils._pytree.tree_map(lambda item: item.cpu(), loaded(*given)), expected, rtol=1e-5, atol=1e-5)

"""Trains a GPT over eight devices as a program for one device does, with shardings chosen by the policy alone; prints JSON."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla import _XLAC
from torch_xla.debug import metrics
from xla_core.abi.tensors import buffer_of

BATCH, TOKENS, WIDTH, VOCABULARY, STEPS = 16, 12, 32, 64, 4


class GPT(nn.Module):
    """Two blocks between an embedding and its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.scale = nn.Parameter(torch.ones(3))  # which eight devices do not divide

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(TOKENS, device=tokens.device)
        hidden = self.blocks(self.embedding(tokens) + self.positions, causal, is_causal=True)
        return F.linear(hidden, self.embedding.weight) * self.scale.mean()


def train(device: str) -> tuple[list[float], GPT, torch.optim.Optimizer, list[int]]:
    """Losses, model, optimizer, programs compiled until the end of each step."""
    torch.manual_seed(0)
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses, compiles = [], []
    for _ in range(STEPS):
        tokens = torch.randint(VOCABULARY, (BATCH, TOKENS + 1))
        inputs, labels = tokens[:, :-1].to(device), tokens[:, 1:].to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        compiles.append(metrics.metric_data("CompileTime")[0] if device == "xla" else 0)
        losses.append(loss.item())
    return losses, model, optimizer, compiles


def share(tensor: torch.Tensor) -> float:
    """The fraction of a tensor that each device holds."""
    (nbytes,) = {shard.data.nbytes for shard in buffer_of(tensor).addressable_shards}
    return float(nbytes / tensor.nbytes)


def main() -> None:
    expected = train("cpu")[0]
    xr.use_spmd(auto=True)
    losses, model, optimizer, compiles = train("xla")
    found: dict[str, Any] = {"expected": expected, "losses": losses, "compiles": compiles, "auto": _XLAC._xla_get_auto_sharding()}
    found["weights"] = {name: share(parameter) for name, parameter in model.named_parameters()}
    found["moments"] = {name: share(optimizer.state[parameter]["exp_avg"]) for name, parameter in model.named_parameters()}
    found["texts"] = {name: _XLAC._get_xla_sharding_spec(parameter) for name, parameter in model.named_parameters()}

    batch = torch.randn(16, 24).to("xla")
    mesh = xs.Mesh(range(8), (4, 2), ("x", "y"))
    found["batch"] = _XLAC._get_xla_sharding_spec(batch)
    xs.mark_sharding(batch, mesh, ("y", "x"))
    found["marked"] = _XLAC._get_xla_sharding_spec(batch)
    found["odd"] = [_XLAC._get_xla_sharding_spec(torch.ones(shape).to("xla")) for shape in ((), (7, 8), (0, 8))]
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""Folders of exported programs, run by the program of docs/export.md in a process that has JAX and no torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from torch_xla import stablehlo

PAGE = Path(__file__).resolve().parents[5] / "docs" / "export.md"
BEGIN = """
import sys

for name in ("torch", "torch_xla", "xla_core"):
    sys.modules[name] = None  # importing it raises
"""


def program() -> str:
    """The block of the page that has `load`."""
    (block,) = [each for each in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S) if "def load(" in each]
    return BEGIN + block


class Cases(nn.Module):
    """State, writes to an argument, weights of bfloat16, a tied one, numbers, an unused argument, constants, complex and empty tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4).to(torch.bfloat16)
        self.again = nn.Linear(4, 4, bias=False)
        self.again.weight = self.linear.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("unread", torch.zeros(2))

    def forward(self, nested: dict[str, Any], unused: torch.Tensor, factor: int) -> Any:
        self.calls += 1
        self.unread.fill_(3)
        nested["sums"].add_(nested["x"].sum(0))
        hidden = self.again(self.linear(nested["x"].to(torch.bfloat16)))
        constant = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
        return hidden, None, factor, nested["x"] * constant * self.calls, torch.fft.fft(nested["x"]), nested["x"][:0]


def test_a_process_with_jax_alone_computes_the_values_of_the_cpu(tmp_path: Path, run: Callable[..., str]) -> None:
    torch.manual_seed(0)
    module, folder = Cases().eval(), tmp_path / "folder"
    x, sums = torch.randn(3, 4), torch.zeros(4)
    args = ({"sums": sums.clone(), "x": x}, torch.ones(5), 3)
    options = stablehlo.StableHLOExportOptions(inline_all_constant=False)
    stablehlo.save_as_stablehlo(torch.export.export(module, args), str(folder), options)
    np.save(tmp_path / "x.npy", x.numpy())
    code = f"""
run, state = load({str(folder)!r})
step = jax.jit(run)
arguments = [np.zeros(4, np.float32), np.load({str(tmp_path / "x.npy")!r}), None, None]
for call in range(2):
    results, state, arguments = step(state, arguments)
exported = jax.export.export(step)(state, arguments)
again, state, arguments = jax.jit(exported.call)(state, arguments)
values = [*results, *again, arguments[0], state["parameter"]["calls"], state["parameter"]["unread"]]
np.savez({str(tmp_path / "found.npz")!r}, *[np.asarray(each, np.float32 if each.dtype == "bfloat16" else None) for each in values])
print("torch" in [name for name, module in sys.modules.items() if module])
"""
    assert run(program() + code).split() == ["False"]
    results = [[each for each in module({"sums": sums, "x": x}, *args[1:]) if isinstance(each, torch.Tensor)] for _ in range(3)]
    expected = [each.detach() for each in (*results[1], *results[2], sums, module.calls, module.unread)]
    for found, wanted in zip(np.load(tmp_path / "found.npz").values(), expected, strict=True):
        low = wanted.dtype is torch.bfloat16
        torch.testing.assert_close(torch.from_numpy(found), wanted.float() if low else wanted, rtol=2e-2 if low else 1e-5, atol=1e-5)


class Dropout(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, True)


def test_random_numbers_come_from_a_key(tmp_path: Path, run: Callable[..., str]) -> None:
    stablehlo.save_as_stablehlo(torch.export.export(Dropout(), (torch.ones(100),)), str(tmp_path))
    code = f"""
run, state = load({str(tmp_path)!r})
step = jax.jit(run)
draw = lambda seed: np.asarray(step(state, [np.ones(100, np.float32)], jax.random.key(seed))[0][0])
assert set(draw(0)) == {{0, 2}} and 20 < (draw(0) == 2).sum() < 80
print((draw(0) == draw(0)).all(), (draw(0) == draw(1)).all())
"""
    assert run(program() + code).split() == ["True", "False"]

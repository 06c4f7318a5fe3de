"""`torch.library.opcheck` on the operations `torch.ops.xla`: schema, fakes, autograd, and gradients under AOTAutograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.library import opcheck

import torch_xla.experimental.custom_kernel  # defines the operations, as the next
import torch_xla.experimental.quantized  # noqa: F401
from torch_xla.experimental.splash_attention import SplashAttentionConfig

# opcheck itself, with torch 2.14
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
DRAW = torch.Generator().manual_seed(2)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAW)


Q, GROUPS = drawn(1, 2, 3, 4), torch.tensor([2, 0, 4])
IDS, BIAS = torch.tensor([[0, 0, 1]]), drawn(1, 1, 3, 3)
PAGES, TABLES = drawn(2, 3, 4, 8), (torch.tensor([3, 7]), torch.tensor([[1, 0], [2, 1]]))
WEIGHT = torch.randint(-127, 128, (4, 6), generator=DRAW, dtype=torch.int8)
CONFIG = SplashAttentionConfig().to_json()
FLASH = (IDS, IDS, 0.5, BIAS, None, None)
# The operations with a gradient get inputs that require one.
DIFFERENTIABLE: dict[str, tuple[Any, ...]] = {
    "flash_attention": (Q, Q, Q, True),
    "segmented_flash_attention": (Q, Q, Q, False, *FLASH),
    "splash_attention": (Q, Q, Q, CONFIG, IDS, True, 20.0),
    "gmm": (drawn(7, 3), drawn(2, 3, 4), GROUPS, None, torch.tensor([1])),
    "tgmm": (drawn(3, 7), drawn(7, 2), GROUPS, None, torch.tensor([1]), 2),
    "quantized_matmul": (drawn(5, 6), WEIGHT, torch.rand(4, generator=DRAW).detach()),
    "quantized_matmul_int8": (drawn(5, 6), WEIGHT, torch.rand(4, generator=DRAW), None, None, True),
}
BYTES = (-128, 127, torch.int8)
OTHERS: dict[str, tuple[Any, ...]] = {
    "quantize_tensor": (drawn(2, 3), [0.1, 0.2], [0, 3], *BYTES, 0),
    "dequantize_tensor": (WEIGHT, [0.1], [3], *BYTES),
    "quantize_channels": (drawn(2, 3), torch.ones(3), torch.zeros(3), 1, *BYTES),
    "dequantize_channels": (WEIGHT, torch.ones(4), torch.zeros(4), 0, *BYTES),
    "fa_custom_forward": (Q, Q, Q, True, *FLASH, [True] * 3),
    "fa_custom_backward": (Q, Q, Q, Q, None, None, None, IDS, IDS, BIAS, True, 0.5, None, None, [1, 2, 3, 4], [1, 2, 3, 4], None, []),
    "sa_custom_forward": (Q, Q, Q, CONFIG, None, True, None),
    "sa_custom_backward": (Q, Q, Q, Q, CONFIG, None, True, None),
    "paged_attention": (drawn(2, 4, 8), PAGES, PAGES, *TABLES, 2),
    "multi_queries_paged_attention": (drawn(2, 3, 4, 8), PAGES, PAGES, *TABLES, torch.tensor([3, 1]), 1, 1, True),
    "ragged_paged_attention": (drawn(5, 4, 8), drawn(3, 4, 4, 8), *TABLES, torch.tensor([0, 2, 5]), torch.tensor([2])),
}


@pytest.mark.parametrize("name", [*DIFFERENTIABLE, *OTHERS])
def test_an_operation_is_what_torch_expects(name: str) -> None:
    def fresh(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        copy = item.detach().clone()
        return copy.requires_grad_(name in DIFFERENTIABLE and copy.is_floating_point() and copy.ndim > 1)

    arguments = tuple(fresh(item) for item in (DIFFERENTIABLE | OTHERS)[name])
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if name in DIFFERENTIABLE:
        checks.append("test_aot_dispatch_dynamic")  # slow, and about gradients
    found = opcheck(getattr(torch.ops.xla, name).default, arguments, test_utils=checks)
    assert list(found.values()) == ["SUCCESS"] * len(checks)

"""What only XLA:CPU needs is in its programs, and not in those for TPUs and GPUs: read before any optimisation.

Products for each tap of a convolution, planes, groups in blocks, sums in loops, barriers, layouts, widened halves, tiles of groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from compiled_programs import compiled_for
from torch import nn
from torch.nn import functional

from xla_core.features.export.stablehlo import get_stablehlo

pytestmark = [pytest.mark.targets]

Recorded = Callable[[], list[torch.Tensor | None]]
HALF = torch.bfloat16


@dataclass(frozen=True)
class Program:
    """What is recorded, forward and backward. on_cpu: the marks that its form for the CPU has. convolutions: of the other form."""

    record: Recorded
    on_cpu: frozenset[str]
    convolutions: list[str] = field(default_factory=list)


def derived(result: torch.Tensor, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    return [result, *torch.autograd.grad(result, leaves, torch.ones_like(result))]


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="xla", requires_grad=True)


def module(make: Callable[[], nn.Module], *shape: int, dtype: torch.dtype = torch.float32) -> Recorded:
    def record() -> list[torch.Tensor | None]:
        layer, x = make().to(dtype).to("xla"), leaf(*shape, dtype=dtype)
        return derived(layer(x), [x, *layer.parameters()])

    return record


def function(call: Callable[..., torch.Tensor], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Recorded:
    def record() -> list[torch.Tensor | None]:
        leaves = [leaf(*shape, dtype=dtype) for shape in shapes]
        return derived(call(*leaves), leaves)

    return record


def convolution(make: Callable[[], nn.Module], *shape: int, marks: str, dtype: str = "f32") -> Program:
    """A convolution is one of the compiler's, as are its two gradients, in the dtype and over the dimensions that were asked for."""
    recorded = module(make, *shape, dtype=HALF if dtype == "bf16" else torch.float32)
    return Program(recorded, frozenset(["barrier", "layout", *marks.split()]), [f"{len(shape)} {dtype}"] * 3)


def by_groups(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.grouped_mm(a, b, offs=torch.tensor([128, 256, 384, 512], dtype=torch.int32).to("xla"))


def written() -> list[torch.Tensor | None]:
    x = torch.zeros(64, 512, device="xla")
    x[:, 2:5] = torch.ones(3, device="xla")
    return [x]


KEPT = frozenset(["barrier"])
PROGRAMS = {
    "conv2d": convolution(lambda: nn.Conv2d(64, 64, 3, padding=1), 8, 64, 16, 16, marks=""),
    "conv2d, 1 × 1": convolution(lambda: nn.Conv2d(64, 64, 1), 8, 64, 16, 16, marks="product"),
    "conv2d, small map": convolution(lambda: nn.Conv2d(64, 64, 3, padding=1), 8, 64, 2, 2, marks="product"),
    "conv2d, stride": convolution(lambda: nn.Conv2d(3, 64, 7, stride=2), 2, 3, 32, 32, marks=""),
    "conv2d, bfloat16": convolution(lambda: nn.Conv2d(64, 64, 3, padding=1), 8, 64, 16, 16, marks="widened", dtype="bf16"),
    "conv2d, depthwise": convolution(lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64), 8, 64, 16, 16, marks="loop"),
    "conv2d, depthwise, large": convolution(lambda: nn.Conv2d(64, 64, 31, padding=15, groups=64), 2, 64, 40, 40, marks="loop"),
    "conv2d, groups": convolution(lambda: nn.Conv2d(64, 64, 3, padding=1, groups=4), 8, 64, 16, 16, marks="blocks"),
    "conv1d": convolution(lambda: nn.Conv1d(64, 64, 3, padding=1), 8, 64, 128, marks=""),
    "conv3d": convolution(lambda: nn.Conv3d(16, 16, 3, padding=1), 2, 16, 8, 8, 8, marks="planes"),
    "conv_transpose2d": convolution(lambda: nn.ConvTranspose2d(64, 64, 3, stride=2), 8, 64, 16, 16, marks=""),
    "conv_transpose3d": convolution(lambda: nn.ConvTranspose3d(16, 16, 3, stride=2), 2, 16, 8, 8, 8, marks="planes"),
    "batch_norm": Program(module(lambda: nn.BatchNorm2d(64), 8, 64, 16, 16), frozenset(["barrier", "layout"])),
    "group_norm": Program(module(lambda: nn.GroupNorm(8, 64), 8, 64, 16, 16), KEPT),
    "layer_norm": Program(module(lambda: nn.LayerNorm(512), 8, 64, 512), KEPT),
    "rms_norm": Program(module(lambda: nn.RMSNorm(512), 8, 64, 512), KEPT),
    "softmax": Program(function(lambda x: x.softmax(-1), (64, 512)), KEPT),
    "log_softmax": Program(function(lambda x: x.log_softmax(-1), (64, 512)), KEPT),
    "cross_entropy": Program(
        function(lambda x: functional.cross_entropy(x, torch.zeros(64, dtype=torch.int64, device="xla")), (64, 512)), KEPT
    ),
    "sum": Program(function(torch.sum, (64, 512)), KEPT),
    "amax": Program(function(lambda x: x.amax(-1), (64, 512)), KEPT),
    "attention": Program(function(functional.scaled_dot_product_attention, *[(2, 4, 128, 64)] * 3), KEPT),
    "grouped_mm": Program(function(by_groups, (512, 64), (4, 64, 64), dtype=HALF), frozenset(["loop"])),
    "a slice written": Program(written, KEPT),
}


def marks_of(text: str, convolutions: list[str]) -> set[str]:
    """The marks of a form for the CPU that a program has, which has these convolutions in the other form."""
    found = re.findall(r"stablehlo\.convolution.*?: \(tensor<((?:\d+x)+)(\w+)>", text)
    marks = {
        "barrier": "optimization_barrier" in text,
        "layout": "LayoutConstraint" in text,
        "loop": "stablehlo.while" in text,
        "product": bool(convolutions) and "dot_general" in text,
        "blocks": len(found) > len(convolutions),
        "planes": any(shape.count("x") != int(convolutions[0].split()[0]) for shape, _ in found),
        "widened": any(dtype != convolutions[0].split()[1] for _, dtype in found),
    }
    return {mark for mark, there in marks.items() if there}


@pytest.mark.parametrize("target", ["cpu:1", "v5e", "h100"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_platform_has_its_own_form(name: str, target: str) -> None:
    program = PROGRAMS[name]
    with compiled_for(target):
        results = program.record()
        text = get_stablehlo([result for result in results if result is not None])
    marks = marks_of(text, program.convolutions)
    if target == "cpu:1":
        assert marks == program.on_cpu
    else:
        assert not marks and text.count("stablehlo.convolution") == len(program.convolutions)


@pytest.mark.parametrize("target", ["v5e", "h100"])
def test_halves_are_multiplied_as_halves(target: str) -> None:
    """And summed in float32, which all units for them do."""
    with compiled_for(target):
        results = module(lambda: nn.Linear(256, 256), 64, 256, dtype=HALF)()
        products = re.findall(
            r"dot_general.*?: \((tensor<\S+>, tensor<\S+>)\) -> (tensor<\S+>)", get_stablehlo([x for x in results if x is not None])
        )
    assert len(products) == 3 and all(taken.count("xbf16>") == 2 and given.endswith("xf32>") for taken, given in products)


@pytest.mark.parametrize("target", ["v5e", "h100"])
def test_a_step_of_a_network_has_none_of_them(target: str) -> None:
    """A residual block, a recurrent layer, pooling and an optimizer in one program."""
    with compiled_for(target) as programs:
        layers = [nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(16, 16, 3, groups=16)]
        model = nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(2), nn.Linear(36, 32)).to("xla")
        recurrent = nn.GRU(32, 32).to("xla")
        optimizer = torch.optim.AdamW([*model.parameters(), *recurrent.parameters()])
        recurrent(model(torch.randn(4, 3, 32, 32).to("xla")))[0].square().mean().backward()
        optimizer.step()
        text = get_stablehlo()
        assert not {"layout", "loop"} & marks_of(text, ["4 f32"] * text.count("stablehlo.convolution"))
        assert text.count("optimization_barrier") == (target == "h100"), "max pooling's gradient on a GPU finds its indices again"
        assert text.count("stablehlo.convolution") == 5, "two convolutions, without the gradient of the input"
        assert not programs

"""timm's networks on xla: forward, backward and batch statistics equal the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2
from torch import nn
from torch.nn import functional


def convnext() -> nn.Module:
    return timm.models.convnext.ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 8, 16, 16), kernel_sizes=(7, 3, 3, 3), num_classes=5)


def resnet() -> nn.Module:
    return timm.models.resnet.ResNet(timm.models.resnet.BasicBlock, (1, 1, 1, 1), channels=(8, 16, 16, 16), stem_width=8, num_classes=5)


def vision_transformer() -> nn.Module:
    return timm.models.VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5)


@pytest.mark.parametrize("make", [convnext, resnet, vision_transformer], ids=lambda make: make.__name__)
def test_forward_and_backward_equal_the_cpu(make: Callable[[], nn.Module], assert_same_weights: Callable[..., None]) -> None:
    torch.manual_seed(0)
    cpu = make()
    xla = copy.deepcopy(cpu).to("xla")
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8) % 5
    expected = cpu(images)
    functional.cross_entropy(expected, labels).backward()
    found = xla(images.to("xla"))
    functional.cross_entropy(found, labels.to("xla")).backward()
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    for (name, theirs), ours in zip(cpu.named_parameters(), xla.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    assert_same_weights(xla, cpu)


def test_an_optimizer_of_timm_trains_as_on_the_cpu(assert_same_weights: Callable[..., None]) -> None:
    torch.manual_seed(0)
    cpu = nn.Linear(4, 3)
    xla = copy.deepcopy(cpu).to("xla")
    inputs = torch.randn(8, 4)
    for network, device in ((cpu, "cpu"), (xla, "xla")):
        optimizer = create_optimizer_v2(network, opt="lamb", lr=0.1, weight_decay=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            network(inputs.to(device)).square().sum().backward()
            optimizer.step()
    assert_same_weights(xla, cpu)

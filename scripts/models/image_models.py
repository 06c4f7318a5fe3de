"""Ten image networks of timm and torchvision, with ten classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import timm
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from case import Batch, Case, Entry, pictures, words

CLASSES = 10


class Classifier(nn.Module):
    """A network of images with its loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.network(images)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def loss_of(output: Any) -> Tensor:
    loss: Tensor = output["loss"]
    return loss


def classes(make: Callable[[], nn.Module], size: int, batch: int = 8) -> Case:
    """A classifier of images of `size` × `size`."""

    def batch_of(step: int) -> Batch:
        return {"images": pictures(step, batch, 3, size, size), "labels": words(step, CLASSES, batch)}

    return Case(Classifier(make()), batch_of, loss_of)


def _timm(name: str, what: str, size: int = 64, row: str = "", **options: Any) -> Entry:
    make = partial(timm.create_model, name, pretrained=False, num_classes=CLASSES, **options)
    return Entry(row or name, "timm", what, partial(classes, make, size))


def _torchvision(name: str, what: str, size: int = 64, **options: Any) -> Entry:
    make = partial(torchvision.models.get_model, name, weights=None, num_classes=CLASSES, **options)
    return Entry(f"tv_{name}", "torchvision", what, partial(classes, make, size))


IMAGES = (
    _timm("resnet26", "residual, 26 layers"),
    _timm("convnext_atto", "ConvNeXt"),
    _timm("vit_tiny_patch16_224", "vision transformer", row="vit_tiny", img_size=64, patch_size=8),
    _timm(
        "swin_tiny_patch4_window7_224",
        "shifted windows",
        row="swin",
        img_size=64,
        window_size=4,
        depths=(1, 1, 1, 1),
        embed_dim=48,
        drop_path_rate=0.0,
    ),  # fmt: skip
    _timm("efficientnet_lite0", "depthwise, inverted residuals"),
    _timm("mobilenetv3_small_075", "depthwise, squeeze and excitation", drop_rate=0.0),
    _torchvision("resnet18", "residual, 18 layers"),
    _torchvision("densenet121", "densely connected, 121 layers"),
    _torchvision("regnet_y_400mf", "grouped convolutions"),
    _torchvision("shufflenet_v2_x0_5", "shuffled channels"),
)

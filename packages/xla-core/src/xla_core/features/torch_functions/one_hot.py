"""`one_hot` as one recorded operation: torch would compare with all classes, and not notice a class that there is not."""

from __future__ import annotations

import torch

from xla_core.engine.tensor.device import direct

_library = torch.library.Library("aten", "IMPL")
_recorded = direct(torch.ops.aten.one_hot.default)


def one_hot(x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """one_hot(Tensor self, int num_classes=-1) -> Tensor; -1 reads the largest class."""
    if x.dtype is not torch.int64:
        raise RuntimeError(f"one_hot is only applicable to index tensor of type LongTensor, found {x.dtype}: convert it with x.long()")
    if num_classes == -1:
        if not x.numel():
            raise RuntimeError("Can not infer total number of classes from empty tensor: give num_classes")
        low, high = (int(bound) for bound in torch.stack(x.aminmax()).tolist())
        if low < 0:
            raise RuntimeError(f"Class values must be non-negative, found {low}")
        num_classes = high + 1
    elif num_classes < 1 and (num_classes < 0 or x.numel()):
        raise RuntimeError(f"num_classes should be positive, found {num_classes}")
    result: torch.Tensor = _recorded(x, num_classes)
    return result


def register() -> None:
    """Let torch call this for xla tensors."""
    _library.impl("one_hot", one_hot, "PrivateUse1")

"""`ctc_loss`: lengths become operands, so that batches of other lengths need no other program."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from xla_core.engine.tensor.dispatch import add_handlers
from xla_core.engine.tensor.tensor import XLATensor

Lengths = Sequence[int] | Tensor


def _in_a_row(lengths: Lengths) -> Lengths:
    """Lengths as torch reads them: those of a tensor of any shape, as of a 0-d one for a single sequence."""
    return lengths.reshape(-1) if isinstance(lengths, Tensor) else lengths


def _longest(targets: Tensor, lengths: Lengths) -> int:
    """Labels that a target has at most: known from the shape of padded targets, else from lengths on the host."""
    if targets.dim() == 2:
        return targets.shape[1]
    if type(lengths) is XLATensor:
        return targets.numel()
    return max((int(each) for each in lengths), default=0)


def _check(log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths, blank: int) -> None:
    """Let torch refuse what it refuses on the CPU; of lengths on the device it sees stand-ins. Raises RuntimeError."""
    for name, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if isinstance(lengths, Tensor) and (lengths.dtype.is_floating_point or lengths.dtype.is_complex or lengths.dtype is torch.bool):
            raise RuntimeError(f"{name} must be integral, found {lengths.dtype}")
    if type(input_lengths) is XLATensor or type(target_lengths) is XLATensor:
        first = targets.numel() if targets.dim() == 1 else 0
        counts = (each.numel() if isinstance(each, Tensor) else len(each) for each in (input_lengths, target_lengths))
        input_lengths, target_lengths = ([size, *[0] * (count - 1)][:count] for size, count in zip((0, first), counts, strict=True))
    host = (torch.zeros(one.shape, dtype=one.dtype, device="cpu") for one in (log_probs, targets))
    torch.ops.aten._ctc_loss(*host, [int(each) for each in input_lengths], [int(each) for each in target_lengths], blank)


def _operand(lengths: Lengths, beside: Tensor) -> Tensor:
    if type(lengths) is XLATensor:
        return lengths
    return torch.as_tensor(lengths, dtype=torch.int64, device="cpu").to(beside.device)


def loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths, blank: int = 0, zero_infinity: bool = False
) -> tuple[Tensor, Tensor]:
    """Negative log likelihoods (batch,) and the forward variables (batch, time, states)."""
    input_lengths, target_lengths = _in_a_row(input_lengths), _in_a_row(target_lengths)
    _check(log_probs, targets, input_lengths, target_lengths, blank)
    lengths = (_operand(each, log_probs) for each in (input_lengths, target_lengths))
    result: tuple[Tensor, Tensor] = torch.ops.xla_core.ctc_loss(log_probs, targets, *lengths, _longest(targets, target_lengths), blank)
    return result


def backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """The gradient of log_probs (time, batch, classes)."""
    lengths = (_operand(_in_a_row(each), log_probs) for each in (input_lengths, target_lengths))
    longest = (log_alpha.shape[2] - 1) // 2
    result: Tensor = torch.ops.xla_core.ctc_loss_backward(
        grad, log_probs, targets, *lengths, neg_log_likelihood, log_alpha, longest, blank, zero_infinity
    )
    return result


def register() -> None:
    """Serve torch's operators by these functions."""
    add_handlers(dict.fromkeys(("_ctc_loss", "_ctc_loss.Tensor"), lambda args, kwargs: loss(*args, **kwargs)))
    add_handlers(dict.fromkeys(("_ctc_loss_backward", "_ctc_loss_backward.Tensor"), lambda args, kwargs: backward(*args, **kwargs)))

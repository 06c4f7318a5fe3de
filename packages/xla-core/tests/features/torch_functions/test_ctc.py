"""CTC loss and its gradient against CPU torch, lengths as numbers and as tensors."""

from __future__ import annotations

import pytest
import torch

from xla_core.base import metrics

TIME, BATCH, CLASSES, LABELS = 10, 3, 6, 5
# Input and target lengths: all possible; a loss that is infinite; nothing to read or to say; exactly enough time.
LENGTHS = [((10, 8, 6), (4, 3, 5)), ((10, 3, 0), (4, 4, 0)), ((10, 10, 10), (0, 1, 5)), ((5, 2, 1), (5, 1, 1))]
WAYS = [(torch.float32, "none", False), (torch.float64, "mean", True), (torch.float32, "sum", True)]
# More than there is time, fewer than there are inputs, more than there are labels.
IMPOSSIBLE = [((11, 1, 1), (1, 1, 1)), ((5, 5), (1, 1, 1)), ((5, 5, 5), (6, 1, 1))]
Lengths = tuple[tuple[int, ...], tuple[int, ...]]


def loss_and_gradient(
    device: str, lengths: Lengths, joined: bool, numbers: bool, dtype: torch.dtype, reduction: str, zero_infinity: bool
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    log_probs = torch.randn(TIME, BATCH, CLASSES, dtype=dtype, generator=generator).log_softmax(2).to(device).requires_grad_()
    targets = torch.randint(1, CLASSES, (BATCH, LABELS), generator=generator)
    targets[0, 1] = targets[0, 0]  # a repeated label needs a blank between
    if joined:
        targets = torch.cat([row[:size] for row, size in zip(targets, lengths[1], strict=True)])
    given = lengths if numbers else [torch.tensor(each, device=device) for each in lengths]
    loss = torch.nn.functional.ctc_loss(log_probs, targets.to(device), *given, reduction=reduction, zero_infinity=zero_infinity)  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
    return [loss.detach().cpu(), gradient.cpu()]


@pytest.mark.parametrize("lengths", LENGTHS, ids=["fits", "infinite", "empty", "tight"])
@pytest.mark.parametrize("joined", [False, True], ids=["padded", "joined"])
@pytest.mark.parametrize("numbers", [False, True], ids=["tensors", "numbers"])
def test_ctc_loss(lengths: Lengths, joined: bool, numbers: bool) -> None:
    seen: list[metrics.FallbackEvent] = []
    stop = metrics.subscribe(seen.append, metrics.FallbackEvent)
    try:
        for reduction, zero_infinity, dtype in (
            ("none", False, torch.float32),
            ("mean", True, torch.float64),
            ("sum", True, torch.float32),
        ):
            options = (lengths, joined, numbers, dtype, reduction, zero_infinity)
            for mine, theirs in zip(loss_and_gradient("xla", *options), loss_and_gradient("cpu", *options), strict=True):
                torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=1e-4, atol=1e-5)
    finally:
        stop()
    assert not seen


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("where", ["cpu", "device"])
def test_a_sequence_without_a_batch(where: str, reduction: str) -> None:
    """Its lengths are numbers, as 0-d tensors."""
    log_probs, targets = torch.randn(TIME, CLASSES).log_softmax(1), torch.tensor([1, 1, 4])
    seen = []
    for device in ("cpu", "xla"):
        x = log_probs.to(device).requires_grad_()
        lengths = [torch.tensor(each, device=device if where == "device" else "cpu") for each in (TIME - 1, 3)]
        loss = torch.nn.functional.ctc_loss(x, targets.to(device), *lengths, reduction=reduction)
        (gradient,) = torch.autograd.grad(loss, x)
        seen.append((loss.detach().cpu(), gradient.cpu()))
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-5)


def test_other_lengths_need_no_other_program() -> None:
    before = metrics.counter("UncachedCompile")
    options = (False, True, torch.float32, "mean", False)
    loss_and_gradient("xla", ((9, 9, 9), (1, 2, 3)), *options)
    compiled = metrics.counter("UncachedCompile")
    loss_and_gradient("xla", ((9, 8, 7), (3, 2, 1)), *options)
    assert metrics.counter("UncachedCompile") == compiled >= before


@pytest.mark.parametrize(
    "lengths", [((11, 1, 1), (1, 1, 1)), ((5, 5), (1, 1, 1)), ((5, 5, 5), (6, 1, 1))], ids=["input", "number", "target"]
)
def test_lengths_that_cannot_be_are_refused_with_the_same_error(lengths: Lengths) -> None:
    options = (lengths, False, True, torch.float32, "mean", False)
    with pytest.raises(RuntimeError) as theirs:
        loss_and_gradient("cpu", *options)
    with pytest.raises(RuntimeError) as mine:
        loss_and_gradient("xla", *options)
    assert str(mine.value).splitlines()[0] == str(theirs.value).splitlines()[0]

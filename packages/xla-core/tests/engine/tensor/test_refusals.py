"""Calls that CPU torch refuses are refused at the call, with the same type of error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import torch_xla.core.xla_model as xm

Call = Callable[[str], object]


def ctc(device: str, lengths: torch.Tensor) -> torch.Tensor:
    scores = torch.zeros(4, 2, 3, device=device).log_softmax(2)
    return F.ctc_loss(scores, torch.ones(2, 2, dtype=torch.int64, device=device), lengths.to(device), torch.tensor([2, 2], device=device))


REFUSED: dict[str, Call] = {
    "unique over a dimension that is not there": lambda d: torch.ones(2, 3, device=d).unique(dim=9),
    "unique_consecutive over none": lambda d: torch.ones(2, 3, device=d).unique_consecutive(dim=2),
    "resize_ to a negative size": lambda d: torch.ones(3, device=d).resize_(-1),
    "bitwise_and of floats": lambda d: torch.ones(3, device=d).bitwise_and(torch.ones(3, device=d)),
    "bitwise_and of many floats": lambda d: torch.ones(400, 400, device=d).bitwise_and(torch.ones(400, 400, device=d)),
    "ctc_loss with lengths of floats": lambda d: ctc(d, torch.tensor([4.0, 4.0])),
    "ctc_loss with a length too few": lambda d: ctc(d, torch.tensor([4])),
    "a stride of 0": lambda d: F.conv2d(torch.ones(1, 1, 4, 4, device=d), torch.ones(1, 1, 2, 2, device=d), stride=0),
    "a convolution's bias of another size, in a large call": lambda d: F.conv2d(
        torch.ones(64, 3, 80, 80, device=d), torch.ones(4, 3, 3, 3, device=d), torch.ones(5, device=d)
    ),
    "a transposed convolution's bias of another size": lambda d: F.conv_transpose2d(
        torch.ones(1, 4, 8, 8, device=d), torch.ones(4, 3, 2, 2, device=d), torch.ones(4, device=d), groups=2
    ),
    "channels_last of two dimensions": lambda d: torch.ones(3, 4, device=d).to(memory_format=torch.channels_last),
    "a channels_last copy of three dimensions": lambda d: torch.ones(3, 4, 2, device=d).clone(memory_format=torch.channels_last),
    "one running statistic without the other": lambda d: F.batch_norm(
        torch.ones(3, 4, device=d), torch.ones(4, device=d), None, training=True
    ),
    "boundaries of two dimensions, of many": lambda d: torch.bucketize(torch.ones(300, 300, device=d), torch.ones(3, 3, device=d)),
    "a sort of many over a dimension that is not there": lambda d: torch.sort(torch.ones(300, 300, device=d), dim=5),
    "more sources than places among many": lambda d: torch.ones(300, 300, device=d).index_reduce(
        0, torch.ones(90, device=d, dtype=torch.int64), torch.ones(91, 300, device=d), "mean"
    ),
    "a negative padding": lambda d: F.conv2d(torch.ones(1, 1, 4, 4, device=d), torch.ones(1, 1, 2, 2, device=d), padding=-1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_at_the_call(name: str) -> None:
    with pytest.raises(Exception) as wanted:
        REFUSED[name]("cpu")
    with pytest.raises(type(wanted.value)):
        REFUSED[name]("xla")


@pytest.mark.parametrize("bias", [(3, 200, 200), (200, 200, 200), (2, 1, 1, 7), (7,)])
@pytest.mark.parametrize("x", [(200, 3), (30, 1, 200, 3)])
def test_a_bias_that_does_not_fit_a_large_product_is_refused_in_the_same_words(x: tuple[int, ...], bias: tuple[int, ...]) -> None:
    errors = []
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError) as error:
            F.linear(torch.ones(x, device=device), torch.ones(200, 3, device=device), torch.ones(bias, device=device))
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_an_operation_that_runs_on_the_cpu_takes_no_tensors_from_there() -> None:
    with pytest.raises(RuntimeError, match=r"not an XLA tensor: torch.FloatTensor of shape \(3, 1\)"):
        torch.linalg.lstsq(torch.eye(3, device="xla"), torch.ones(3, 1))


def test_set_takes_tensors_of_the_device() -> None:
    with pytest.raises(RuntimeError):
        torch.ones(3, device="xla").set_(torch.ones(3))  # type: ignore[call-overload]


def test_copy_of_a_number_is_what_it_is_on_the_cpu() -> None:
    for device in ("cpu", "xla"):
        try:
            found: object = torch.zeros(2, device=device).copy_(5).tolist()  # type: ignore[arg-type]
        except Exception as error:
            found = type(error)
        if device == "cpu":
            wanted = found
    assert found == wanted


def test_collectives_of_one_replica_look_at_their_arguments() -> None:
    x = torch.ones(2, device="xla")
    with pytest.raises(TypeError, match="all_reduce takes tensors, got str"):
        xm.all_reduce("sum", "abc")
    with pytest.raises(IndexError):
        xm.all_gather(x, dim=9)
    with pytest.raises(IndexError):
        xm.reduce_scatter("sum", x, 1.0, scatter_dim=4, shard_count=1)

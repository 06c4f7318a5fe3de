"""GRU layers beside `torch.nn.GRU` on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torch_xla.experimental.eager import eager_mode_context
from torch_xla.experimental.gru import GRU
from xla_core.base import metrics


def near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "batch_first": True}, {"bidirectional": True, "num_layers": 2, "bias": False}], ids=str
)
def test_values_and_gradients(options: dict[str, object], eager: bool) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.GRU(3, 4, **options)  # type: ignore[arg-type]
    mine = GRU(3, 4, **options)  # type: ignore[arg-type]
    mine.load_state_dict(theirs.state_dict())
    mine.to("xla")
    layers = theirs.num_layers * (2 if theirs.bidirectional else 1)
    x, hx = torch.randn(5, 2, 3), torch.randn(layers, 5 if theirs.batch_first else 2, 4)
    for state in (None, hx):
        a, b = x.clone().requires_grad_(), x.to("xla").requires_grad_()
        expected, last = theirs(a, state)
        with eager_mode_context(eager):
            found, hidden = mine(b, None if state is None else state.to("xla"))
        near(found, expected)
        near(hidden, last)
        (expected.square().sum() + last.sum()).backward()
        (found.square().sum() + hidden.sum()).backward()
        near(b.grad, a.grad)
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        near(one.grad, other.grad)


def test_a_longer_sequence_is_no_larger_program() -> None:
    mine = GRU(3, 4).to("xla")
    recorded = []
    for length in (2, 20):
        before = metrics.counter("xla::call_jax")
        mine(torch.zeros(length, 1, 3, device="xla"))
        recorded.append(metrics.counter("xla::call_jax") - before)
    assert recorded == [1, 1]


@pytest.mark.parametrize(("kind", "theirs"), [(GRU, torch.nn.GRU), (torch.nn.LSTM, torch.nn.LSTM)], ids=["GRU", "LSTM"])
def test_packed_sequences(kind: type[torch.nn.RNNBase], theirs: type[torch.nn.RNNBase]) -> None:
    torch.manual_seed(2)
    expected, mine = theirs(3, 4), kind(3, 4)
    mine.load_state_dict(expected.state_dict())
    mine.to("xla")
    x, lengths = torch.randn(3, 2, 3), torch.tensor([2, 3])  # on the CPU, as torch wants them on every device
    results = []
    for layer, device in ((expected, "cpu"), (mine, "xla")):
        given = x.to(device).detach().requires_grad_()
        packed = pack_padded_sequence(given, lengths, enforce_sorted=False)
        assert packed.data.device.type == device and packed.batch_sizes.is_cpu
        padded, found = pad_packed_sequence(layer(packed)[0])
        padded.square().sum().backward()
        assert found.tolist() == [2, 3]
        results.append((padded, given.grad, *[parameter.grad for parameter in layer.parameters()]))
    for wanted, got in zip(*results, strict=True):
        near(got, wanted)


def test_what_torch_takes_and_refuses() -> None:
    torch.manual_seed(1)
    theirs = torch.nn.GRU(3, 4)
    mine = GRU(3, 4)
    mine.load_state_dict(theirs.state_dict())
    on_cpu = copy.deepcopy(mine)
    mine.to("xla")
    x = torch.randn(5, 3)
    expected, last = theirs(x, torch.ones(1, 4))
    found, hidden = mine(x.to("xla"), torch.ones(1, 4, device="xla"))
    near(found, expected)
    near(hidden, last)
    assert found.shape == expected.shape and hidden.shape == last.shape
    near(on_cpu(x)[0], theirs(x)[0])
    packed = pack_padded_sequence(torch.randn(5, 2, 3), [5, 3])
    near(on_cpu(packed)[0].data, theirs(packed)[0].data)
    for wrong in ((torch.zeros(5, 2, 7),), (torch.zeros(5, 2, 3), torch.zeros(1, 3, 4)), (torch.zeros(5),), (x, torch.zeros(1, 1, 4))):
        raised = []
        for layer, device in ((theirs, "cpu"), (mine, "xla")):
            with pytest.raises((RuntimeError, ValueError)) as caught:
                layer(*(one.to(device) for one in wrong))
            raised.append(type(caught.value))
        assert raised[0] is raised[1]


def test_dropout_between_layers_and_autocast() -> None:
    torch.manual_seed(2)
    mine = GRU(3, 4, num_layers=2, dropout=0.5).to("xla")
    x = torch.randn(5, 2, 3).to("xla")
    assert not torch.equal(mine(x)[0].cpu(), mine(x)[0].cpu())
    mine.eval()
    exact = mine(x)[0]
    assert torch.equal(exact.cpu(), mine(x)[0].cpu())
    with torch.autocast("xla", dtype=torch.bfloat16):
        low = mine(x)[0]
    assert low.dtype is torch.bfloat16
    torch.testing.assert_close(low.float().cpu(), exact.detach().cpu(), rtol=0.05, atol=0.05)

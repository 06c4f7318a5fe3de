"""State that is replaced from outside is noticed: a captured call never works on what was there before."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured_programs import Unseen
from torch import Tensor, nn

import torch_xla


class Trained:
    """A model with a captured training step on the device, and the same on the CPU to compare with."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer], width: int) -> None:
        torch.manual_seed(3)
        self.plain = nn.Sequential(nn.Linear(5, width, bias=False), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 3))
        self.model = copy.deepcopy(self.plain).to("xla")
        self.plain_optimizer, self.optimizer = make(self.plain.parameters()), make(self.model.parameters())
        self.calls = 0
        self.step = torch_xla.compile(self._step, capture=True, verify_every=10**6)

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        self.calls += 0  # an attribute that does not change
        return self._train(self.model, self.optimizer, x, y)

    @staticmethod
    def _train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def run(self, count: int = 6) -> None:
        """So many steps of both, which must agree."""
        for _ in range(count):
            x, y = torch.randn(7, 5), torch.randint(3, (7,))
            expected = self._train(self.plain, self.plain_optimizer, x, y)
            found = self.step(x.to("xla"), y.to("xla"))
            torch.testing.assert_close(found.cpu(), expected, rtol=2e-4, atol=1e-5)
        for mine, other in zip(self.model.state_dict().values(), self.plain.state_dict().values(), strict=True):
            torch.testing.assert_close(mine.cpu(), other, rtol=2e-3, atol=1e-4)

    def both(self) -> list[tuple[nn.Module, torch.optim.Optimizer]]:
        return [(self.model, self.optimizer), (self.plain, self.plain_optimizer)]


@pytest.fixture
def trained() -> Trained:
    found = Trained(lambda p: torch.optim.Adam(p, lr=1e-2), 11)
    found.run()
    return found


def test_data_of_a_parameter(trained: Trained) -> None:
    for model, _ in trained.both():
        weight = model[0].weight
        weight.data = torch.ones_like(weight.data) / 3
    trained.run()


def test_writes_to_a_parameter(trained: Trained) -> None:
    for model, _ in trained.both():
        with torch.no_grad():
            model[3].bias.add_(1.5)
            model[0].weight.copy_(torch.full((11, 5), 0.25))
    trained.run()


def test_a_loaded_state_dict(trained: Trained) -> None:
    states = [copy.deepcopy((model.state_dict(), optimizer.state_dict())) for model, optimizer in trained.both()]
    trained.run(3)
    for (model, optimizer), (weights, state) in zip(trained.both(), states, strict=True):
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    trained.run()


def test_a_loaded_state_dict_while_the_old_state_lives(trained: Trained) -> None:
    kept = [(optimizer.state_dict(), copy.deepcopy(optimizer.state_dict())) for _, optimizer in trained.both()]
    trained.run(3)
    for (_, optimizer), (_, state) in zip(trained.both(), kept, strict=True):
        optimizer.load_state_dict(state)
    trained.run()


def test_a_group_is_added(trained: Trained) -> None:
    for model, optimizer in trained.both():
        model.append(nn.Linear(3, 3, device=next(model.parameters()).device))
        with torch.no_grad():
            model[4].weight.copy_(torch.eye(3))
            model[4].bias.zero_()
        optimizer.add_param_group({"params": model[4].parameters(), "lr": 0.05})
    trained.run()


def test_train_and_eval(trained: Trained) -> None:
    for mode in (False, True, False):
        for model, _ in trained.both():
            model.train(mode)
        trained.run()


def test_a_parameter_is_frozen(trained: Trained) -> None:
    for model, _ in trained.both():
        model[0].weight.requires_grad_(False)
        model[0].weight.grad = None
    trained.run()


def test_a_hook_is_added(trained: Trained) -> None:
    handles = [model[0].register_forward_hook(lambda module, args, output: output * 0.5) for model, _ in trained.both()]
    trained.run()
    for handle in handles:
        handle.remove()
    trained.run()


def test_a_module_is_replaced(trained: Trained) -> None:
    for model, _ in trained.both():
        model[2] = nn.ReLU()
    trained.run()


def test_an_attribute_of_a_module(trained: Trained) -> None:
    for model, _ in trained.both():
        model[1].momentum = 0.5
    trained.run()


def test_hyperparameters(trained: Trained) -> None:
    for values in ({"lr": 3e-3}, {"betas": (0.8, 0.99)}, {"weight_decay": 0.1}, {"weight_decay": 0.0, "eps": 1e-6}, {"amsgrad": False}):
        for _, optimizer in trained.both():
            optimizer.param_groups[0].update(values)
        trained.run(3)


def test_modes_of_the_caller(trained: Trained) -> None:
    x = torch.randn(7, 5).to("xla")
    forward = torch_xla.compile(lambda x: trained.model(x).detach(), capture=True, verify_every=None)
    for _ in range(4):
        expected = forward(x)
        with torch.autocast("xla", torch.bfloat16):
            assert forward(x).dtype is torch.bfloat16
        with torch.no_grad():
            assert forward(x).dtype is torch.float32
    assert expected.dtype is torch.float32


def test_gradients_that_nobody_else_holds_stay_the_same_tensors(trained: Trained) -> None:
    before = [weakref.ref(parameter.grad) for parameter in trained.model.parameters()]
    trained.run(3)
    assert all(reference() is parameter.grad for reference, parameter in zip(before, trained.model.parameters(), strict=True))


def test_gradients_that_others_hold(trained: Trained) -> None:
    before = trained.model[0].weight.grad
    assert before is not None
    copied = before.clone().cpu()
    trained.run(2)
    after = trained.model[0].weight.grad
    assert after is not before
    assert torch.equal(before.cpu(), copied)
    torch.testing.assert_close(after.cpu(), trained.plain[0].weight.grad, rtol=1e-3, atol=1e-5)


def test_values_that_others_hold(trained: Trained) -> None:
    weight = trained.model[0].weight
    copied = weight.detach().clone()  # shares the buffer until one is written to
    expected = weight.detach().cpu()
    trained.run(2)
    assert torch.equal(copied.cpu(), expected)
    assert not torch.equal(weight.detach().cpu(), expected)


def test_saved_for_a_backward_pass_outside(trained: Trained) -> None:
    outside = (trained.model[0].weight ** 2).sum()
    trained.run(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outside.backward()


def test_gradients_set_to_none_outside() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(4, 6)
    model = copy.deepcopy(plain).to("xla")

    def backward(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    step = torch_xla.compile(backward, capture=True, verify_every=None)
    for number in range(24):
        if number % 4 == 0:
            for module in (plain, model):
                for parameter in module.parameters():
                    parameter.grad = None
        x = torch.randn(3, 4)
        expected = plain(x).square().mean()
        expected.backward()
        torch.testing.assert_close(step(x.to("xla")).cpu(), expected.detach())
        for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.grad.cpu(), other.grad)


def test_several_shapes_keep_a_program_each() -> None:
    weight = torch.full((3, 3), 2.0).to("xla")
    called = Unseen()

    def product(x: Tensor, factor: float) -> Tensor:
        next(called)
        return (x @ weight) * factor

    step = torch_xla.compile(product, capture=True, verify_every=None)
    for _ in range(5):
        for rows in (2, 4, 6):
            for factor in (1.5, 2.5):
                x = torch.randn(rows, 3)
                torch.testing.assert_close(step(x.to("xla"), factor).cpu(), (x @ torch.full((3, 3), 2.0)) * factor)
    assert next(called) == 2 * 6


def test_arguments_that_share_data_are_another_case() -> None:
    step = torch_xla.compile(lambda a, b: a.add_(b).clone(), capture=True, verify_every=None)
    for _ in range(4):
        a, b = torch.ones(5).to("xla"), torch.full((5,), 2.0).to("xla")
        assert step(a, b).tolist() == [3.0] * 5
        assert a.tolist() == [3.0] * 5
        assert step(b, b).tolist() == [4.0] * 5


def test_results_as_they_were_recorded() -> None:
    weight = torch.arange(6.0).reshape(2, 3).to("xla")

    def several(x: Tensor) -> dict[str, Any]:
        y = x + weight
        return {"sum": y, "row": y[1], "argument": x, "kept": weight, "part": weight.detach()[0], "number": 3, "none": None}

    step = torch_xla.compile(several, capture=True, verify_every=None)
    for number in range(5):
        x = torch.full((2, 3), float(number)).to("xla")
        found = step(x)
        assert found["argument"] is x
        assert found["kept"] is weight
        assert found["number"] == 3
        assert found["none"] is None
        found["row"].zero_()  # a view of the sum, as recorded
        assert found["sum"].tolist() == [[number, number + 1.0, number + 2.0], [0.0, 0.0, 0.0]]
        assert found["part"].tolist() == [0.0, 1.0, 2.0]


def test_another_thread_uses_what_is_written_to() -> None:
    counts = torch.zeros(8192, device="xla")  # large enough to be given away

    @torch_xla.compile(capture=True, verify_every=10**6)
    def count() -> None:
        counts.add_(1)

    for _ in range(4):
        count()
    seen: list[tuple[float, float]] = []
    failed: list[Exception] = []
    ended = threading.Event()

    def look() -> None:
        try:
            while not ended.is_set():
                least, most = torch.stack([counts.min(), counts.max()]).tolist()
                seen.append((least, most))
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    while len(seen) < 50 and not failed:
        count()
    ended.set()
    thread.join()
    assert not failed
    # The two results may be of different counts: each is recorded alone.
    assert all(least <= most for least, most in seen) and [most for _, most in seen] == sorted(most for _, most in seen)
    assert counts.min().item() == counts.max().item()

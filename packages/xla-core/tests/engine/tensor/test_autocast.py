"""`torch.autocast('xla')` against `torch.autocast('cpu')`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from xla_core.activation import activate
from xla_core.base import private_torch
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.runtime.sync import step
from xla_core.engine.tensor import autocast
from xla_core.engine.tensor.schema import full_name
from xla_core.ops.table import AUTOCAST

activate()
HALF, SINGLE = torch.bfloat16, torch.float32
Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def on(device: str, tensors: tuple[torch.Tensor, ...], dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    return [t.to(device, dtype) if dtype is not None and t.is_floating_point() else t.to(device) for t in tensors]


def both(function: Function, *tensors: torch.Tensor, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """What `function` gives under autocast on xla, and on the CPU."""
    with torch.autocast("xla", dtype=HALF):
        ours = function(*on("xla", tensors, dtype))
    with torch.autocast("cpu", dtype=HALF):
        theirs = function(*on("cpu", tensors, dtype))
    return ours, theirs


IMAGE, SQUARE = torch.randn(2, 3, 6, 6), torch.randn(4, 4)
LOWER: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "matmul": (torch.matmul, (torch.randn(2, 3, 4), SQUARE)),
    "mm": (torch.mm, (torch.randn(3, 4), SQUARE)),
    "bmm": (torch.bmm, (torch.randn(2, 3, 4), torch.randn(2, 4, 5))),
    "addmm": (torch.addmm, (torch.randn(5), torch.randn(3, 4), torch.randn(4, 5))),
    "baddbmm": (torch.baddbmm, (torch.randn(2, 3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5))),
    "einsum": (lambda a, b: torch.einsum("ij,kj->ik", a, b), (torch.randn(3, 4), SQUARE)),
    "linear": (F.linear, (torch.randn(3, 4), SQUARE, torch.randn(4))),
    "conv1d": (F.conv1d, (torch.randn(2, 3, 8), torch.randn(4, 3, 3), torch.randn(4))),
    "conv2d": (F.conv2d, (IMAGE, torch.randn(4, 3, 3, 3), torch.randn(4))),
    "conv2d same": (lambda x, w: F.conv2d(x, w, padding="same"), (IMAGE, torch.randn(4, 3, 3, 3))),
    "conv_transpose2d": (F.conv_transpose2d, (IMAGE, torch.randn(3, 2, 3, 3))),
    "prelu": (F.prelu, (torch.randn(3, 4), torch.tensor([0.25]))),
}
# The CPU leaves these in the dtype they come in.
LOWER_HERE: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "mv": (torch.mv, (SQUARE, torch.randn(4))),
    "addmv": (torch.addmv, (torch.randn(4), SQUARE, torch.randn(4))),
    "relu": (F.relu, (SQUARE,)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (IMAGE,)),
}
CLASSES = torch.tensor([1, 0, 3])
FLOAT32: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), (IMAGE,)),
    "log_softmax": (lambda x: F.log_softmax(x, -1), (SQUARE,)),
    "cross_entropy": (F.cross_entropy, (torch.randn(3, 4), CLASSES)),
    "nll_loss": (F.nll_loss, (torch.randn(3, 4), CLASSES)),
    "mse_loss": (F.mse_loss, (SQUARE, torch.ones(4, 4))),
    "l1_loss": (F.l1_loss, (SQUARE, torch.ones(4, 4))),
    "smooth_l1_loss": (F.smooth_l1_loss, (SQUARE, torch.ones(4, 4))),
    "huber_loss": (F.huber_loss, (SQUARE, torch.ones(4, 4))),
    "kl_div": (lambda a, b: F.kl_div(a, b, reduction="batchmean"), (SQUARE, torch.full((4, 4), 0.25))),
    "binary_cross_entropy": (F.binary_cross_entropy, (torch.rand(4), torch.ones(4))),
    "bce_with_logits": (F.binary_cross_entropy_with_logits, (SQUARE, torch.ones(4, 4))),
    "prod": (torch.prod, (SQUARE,)),
    "prod of dim": (lambda x: torch.prod(x, 1), (SQUARE,)),
    "cdist": (torch.cdist, (torch.randn(3, 4), SQUARE)),
    "trace": (torch.trace, (SQUARE,)),
    "reflection_pad": (lambda x: F.pad(x, (1, 1), mode="reflect"), (torch.randn(2, 3, 6),)),
    "replication_pad": (lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"), (IMAGE,)),
}
POSITIVE = SQUARE @ SQUARE.t() + 4 * torch.eye(4)
LINALG: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "cholesky": (torch.linalg.cholesky, (POSITIVE,)),
    "inverse": (torch.inverse, (POSITIVE,)),
    "qr": (lambda x: torch.linalg.qr(x)[1].abs(), (SQUARE,)),
    "svd": (lambda x: torch.linalg.svd(x)[1], (SQUARE,)),
}


@pytest.mark.parametrize("name", LOWER)
def test_lower_precision(name: str) -> None:
    function, tensors = LOWER[name]
    ours, theirs = both(function, *tensors)
    assert ours.dtype is theirs.dtype is HALF
    torch.testing.assert_close(ours.cpu(), theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", LOWER_HERE)
def test_lower_precision_that_the_cpu_leaves_alone(name: str) -> None:
    function, tensors = LOWER_HERE[name]
    with torch.autocast("xla", dtype=HALF):
        ours = function(*on("xla", tensors))
    assert ours.dtype is HALF
    torch.testing.assert_close(ours.cpu(), function(*on("cpu", tensors, HALF)), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", FLOAT32)
def test_float32(name: str) -> None:
    function, tensors = FLOAT32[name]
    with torch.autocast("xla", dtype=HALF):
        ours = function(*on("xla", tensors, HALF))
    widened = [t.to(HALF).to(SINGLE) if t.is_floating_point() else t for t in tensors]
    theirs = function(*widened)
    assert ours.dtype is SINGLE
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*has no XLA lowering:RuntimeWarning")
@pytest.mark.parametrize("name", LINALG)
def test_float32_linear_algebra(name: str) -> None:
    function, tensors = LINALG[name]
    with torch.autocast("xla", dtype=HALF):
        ours = function(*on("xla", tensors, HALF))
    assert ours.dtype is SINGLE
    torch.testing.assert_close(ours.cpu(), function(tensors[0].to(HALF).to(SINGLE)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("function", [torch.stack, torch.cat], ids=["stack", "cat"])
def test_widest(function: Any) -> None:
    def mixed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        joined: torch.Tensor = function([a.to(HALF), b])
        return joined

    ours, theirs = both(mixed, SQUARE, SQUARE)
    assert ours.dtype is theirs.dtype is SINGLE
    torch.testing.assert_close(ours.cpu(), theirs)
    ours, theirs = both(lambda a, b: function([a.to(HALF), b.to(HALF)]), SQUARE, SQUARE)
    assert ours.dtype is theirs.dtype is HALF


def test_widest_index_copy() -> None:
    ours, theirs = both(lambda a, i, b: a.index_copy(0, i, b.to(HALF)), SQUARE, torch.tensor([2, 0]), torch.randn(2, 4))
    assert ours.dtype is theirs.dtype is SINGLE
    torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("function", [torch.add, torch.sub, torch.maximum], ids=["add", "sub", "maximum"])
def test_other_operations_keep_their_dtype(function: Any) -> None:
    ours, theirs = both(function, SQUARE, SQUARE)
    assert ours.dtype is theirs.dtype is SINGLE


def test_doubles_and_integers_are_left_alone() -> None:
    ours, theirs = both(torch.mm, SQUARE, SQUARE, dtype=torch.float64)
    assert ours.dtype is theirs.dtype is torch.float64
    with torch.autocast("xla", dtype=HALF):
        assert F.relu(torch.tensor([1, -1]).to("xla")).dtype is torch.int64


def test_dtypes_and_switches() -> None:
    x = SQUARE.to("xla")
    with torch.autocast("xla"):
        assert (x @ x).dtype is HALF
        with torch.autocast("xla", enabled=False):
            assert (x @ x).dtype is SINGLE
        assert (x @ x).dtype is HALF
    with torch.autocast("xla", dtype=torch.float16):
        assert (x @ x).dtype is torch.float16
    with torch.autocast("cpu", dtype=HALF):
        assert (x @ x).dtype is SINGLE
    assert (x @ x).dtype is SINGLE
    assert torch.is_autocast_enabled("xla") is False


def test_no_kernel_is_in_the_way_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels' key is passed over by the dispatcher while autocast is off: no cast is even looked at."""
    looked: list[Any] = []
    cast = autocast._cast

    def look(item: Any, dtype: torch.dtype) -> Any:
        looked.append(item)
        return cast(item, dtype)

    monkeypatch.setattr(autocast, "_cast", look)
    x = SQUARE.to("xla")
    for function in (torch.mm, F.linear, torch.matmul):
        function(x, x)
    assert looked == []
    with torch.autocast("xla"):
        torch.mm(x, x)
    assert len(looked) == 2


def casts() -> int:
    """Casts recorded since the last step."""
    recorded = [entry[0].name for entry in current_recorder().pending_graph.entries if type(entry) is tuple]
    return recorded.count("aten._to_copy")


def test_a_weight_is_cast_once() -> None:
    weight = nn.Parameter(SQUARE.to("xla"))
    x = torch.randn(2, 4).to("xla").requires_grad_()

    def recorded(cache: bool) -> int:
        step(current_recorder())
        with torch.autocast("xla", cache_enabled=cache):
            y = F.linear(F.linear(F.linear(x, weight), weight), weight)
        count = casts()
        y.sum().backward()
        return count

    assert recorded(False) == 4  # the input, and each use of the weight
    assert recorded(True) == 2


def test_a_cast_follows_its_weight() -> None:
    weight = nn.Parameter(torch.ones(4, 4).to("xla"))
    x = torch.ones(1, 4).to("xla").requires_grad_()
    with torch.autocast("xla"):
        first = F.linear(x, weight)
        with torch.no_grad():
            weight.mul_(2)
        second = F.linear(x, weight)
    assert first.tolist() == [[4.0] * 4]
    assert second.tolist() == [[8.0] * 4]


def test_a_cast_without_grad_is_not_used_with_grad() -> None:
    weight = nn.Parameter(SQUARE.to("xla"))
    x = torch.randn(2, 4).to("xla")
    with torch.autocast("xla"):
        with torch.no_grad():
            kept = F.linear(x, weight)
        F.linear(x, weight).sum().backward()
    assert not kept.requires_grad
    assert weight.grad is not None
    assert weight.grad.dtype is SINGLE


def test_casts_do_not_outlive_their_use() -> None:
    weight = nn.Parameter(SQUARE.to("xla"))
    with torch.autocast("xla"):
        loss = F.linear(torch.randn(2, 4).to("xla").requires_grad_(), weight).float().sum()
    loss.backward()
    del loss
    assert all(known[2]() is None for known in autocast._casts._known.values())


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.LogSoftmax(-1))


def train(model: nn.Module, device: str, scaled: bool) -> tuple[list[float], list[torch.Tensor]]:
    model = copy.deepcopy(model).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scaler = torch.amp.GradScaler(device, enabled=scaled, init_scale=256.0)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(6):
        x, y = torch.randn(5, 6, generator=generator).to(device), torch.randint(4, (5,), generator=generator).to(device)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=HALF):
            out = model(x)
            loss = F.nll_loss(out, y)
        assert loss.dtype is SINGLE
        assert out.dtype is (SINGLE if device == "xla" else HALF)  # the CPU has no rule for log_softmax
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
def test_training(scaled: bool) -> None:
    model = small()
    losses, weights = train(model, "xla", scaled)
    expected_losses, expected_weights = train(model, "cpu", scaled)
    assert losses == pytest.approx(expected_losses, rel=3e-2)
    for ours, theirs in zip(weights, expected_weights, strict=True):
        assert ours.dtype is SINGLE
        torch.testing.assert_close(ours, theirs, rtol=3e-2, atol=2e-2)


def test_every_listed_operation_has_a_kernel() -> None:
    assert len(AUTOCAST) > 70
    for name in AUTOCAST:
        assert autocast.overloads(name), name
        for func in autocast.overloads(name):
            assert private_torch.has_kernel(full_name(func), "AutocastPrivateUse1")

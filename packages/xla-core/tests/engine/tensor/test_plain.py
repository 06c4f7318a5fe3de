"""Parameters and other tensors of torch's own types on the device: they move in place, and are what they were."""

from __future__ import annotations

import copy
import io
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import forked_python
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from xla_core.base.errors import DeviceMismatchError
from xla_core.engine.tensor.plain import ours, tensor_behind


class Tied(nn.Module):
    """An embedding whose weight is the head's, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.body = nn.Linear(3, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(tokens)).tanh())  # type: ignore[no-any-return]


TOKENS = torch.tensor([[0, 1, 4], [2, 2, 3]])


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> list[float]:
    device = next(model.parameters()).device
    tokens = TOKENS.to(device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


MOVES: dict[str, Callable[[nn.Module], Any]] = {
    "to": lambda module: module.to("xla"),
    "there and back": lambda module: module.to("xla").cpu(),
    "twice": lambda module: module.to("xla").to("xla"),
    "dtype there": lambda module: module.to("xla").double(),
    "dtype here": lambda module: module.double().to("xla"),
    "half": lambda module: module.to("xla").half(),
    "back and again": lambda module: module.to("xla").cpu().to("xla"),
    "both": lambda module: module.to("xla", torch.bfloat16),
}


@pytest.mark.parametrize("move", MOVES)
def test_parameters_are_the_same_objects_after_a_move(move: str) -> None:
    module = Tied()
    before = list(module.parameters())
    weak = [weakref.ref(parameter) for parameter in before]
    values = [parameter.detach().clone() for parameter in before]
    before[0].tag = "mine"  # type: ignore[attr-defined]
    MOVES[move](module)
    after = list(module.parameters())
    assert [id(one) for one in after] == [id(one) for one in before] and all(ref() is one for ref, one in zip(weak, after, strict=True))
    assert module.head.weight is module.embedding.weight and after[0].tag == "mine"  # type: ignore[attr-defined]
    for parameter, value in zip(after, values, strict=True):
        assert type(parameter) is nn.Parameter and isinstance(parameter, nn.Parameter) and parameter.is_leaf and parameter.requires_grad
        torch.testing.assert_close(parameter.detach().cpu().float(), value, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_ties_and_an_optimizer_made_before_train_as_on_the_cpu(kind: Any, when: str) -> None:
    torch.manual_seed(0)
    theirs = Tied()
    mine = copy.deepcopy(theirs)
    if when == "after":
        mine.to("xla")
    optimizer = kind(mine.parameters(), lr=0.1)
    mine.to("xla")
    torch.testing.assert_close(train(mine, optimizer), train(theirs, kind(theirs.parameters(), lr=0.1)), rtol=1e-4, atol=1e-5)
    mine.cpu()
    for ours_, plain in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours_, plain, rtol=1e-4, atol=1e-5)


def test_hooks_and_gradients_move_along() -> None:
    linear = nn.Linear(2, 2)
    seen: list[str] = []
    linear.weight.register_hook(lambda grad: seen.append(f"grad on {grad.device.type}"))
    linear.weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(f"accumulated on {parameter.device.type}"))
    linear(torch.ones(1, 2)).sum().backward()
    for device in ("xla", "cpu", "xla"):
        before = linear.weight.grad
        assert before is not None
        linear.to(device)
        assert linear.weight.grad is not None and linear.weight.grad.device.type == device
        torch.testing.assert_close(linear.weight.grad.cpu(), before.cpu())
        linear(torch.ones(1, 2, device=device)).sum().backward()
    assert seen == [f"{what} on {device}" for device in ("cpu", "xla", "cpu", "xla") for what in ("grad", "accumulated")]
    torch.testing.assert_close(linear.weight.grad.cpu(), torch.full((2, 2), 4.0))


def test_a_move_while_the_graph_lives() -> None:
    linear = nn.Linear(2, 2).to("xla")
    loss = linear(torch.ones(1, 2, device="xla")).sum()
    loss.backward()
    weight = linear.weight
    linear.cpu()
    assert linear.weight is weight and weight.device.type == "cpu" and loss.item() == loss.cpu().item()


@pytest.fixture
def swapping() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.fixture
def overwriting() -> Iterator[None]:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(False)


def test_parameters_can_be_swapped(swapping: None) -> None:
    linear = nn.Linear(2, 2)
    before, value = linear.weight, linear.weight.detach().clone()
    for device in ("xla", "cpu", "xla"):
        linear.to(device)
        linear(torch.ones(1, 2, device=device)).sum().backward()
        assert linear.weight is before and type(before) is nn.Parameter and before.device.type == device
        assert before.grad is not None and before.grad.device.type == device
    torch.testing.assert_close(before.grad.cpu(), torch.full((2, 2), 3.0))
    torch.testing.assert_close(before.detach().cpu(), value)


def test_parameters_can_be_overwritten(overwriting: None) -> None:
    linear = nn.Linear(2, 2)
    before = linear.weight
    linear.to("xla")
    assert linear.weight is not before and before.device.type == "cpu" and type(linear.weight) is nn.Parameter


class Marked(nn.Parameter):
    """A user's own kind of parameter."""


class Labels(Tensor):
    """A user's own kind of tensor, with torch functions."""


def test_subclasses_of_parameter_stay_what_they_are() -> None:
    module = nn.Module()
    module.weight = Marked(torch.arange(3.0))
    module.to("xla")
    assert type(module.weight) is Marked and module.weight.device.type == "xla"
    assert type(copy.deepcopy(module).weight) is Marked
    assert (module.weight * 2).tolist() == [0, 2, 4]
    made = Marked(torch.ones(2, device="xla"), requires_grad=False)
    assert type(made) is Marked and not made.requires_grad and (made + module.weight[:2]).tolist() == [1, 2]
    module.weight.pow(2).sum().backward()
    assert module.weight.grad is not None and module.weight.grad.tolist() == [0, 2, 4]
    assert type(pickle.loads(pickle.dumps(module)).weight) is type(pickle.loads(pickle.dumps(module.cpu())).weight)


def test_other_subclasses_go_to_the_device_and_keep_their_history() -> None:
    labels = torch.arange(3.0).as_subclass(Labels).to("xla")
    assert type(labels) is Labels and labels.device.type == "xla" and type(labels + 1) is Labels and (labels + 1).tolist() == [1, 2, 3]
    source = torch.ones(2, device="xla", requires_grad=True)
    (source * 3).as_subclass(Labels).sum().backward()
    assert source.grad is not None and source.grad.tolist() == [3, 3]
    assert type(copy.deepcopy(labels)) is Labels


def test_parameters_are_made_of_what_is_on_the_device() -> None:
    data = torch.ones(2, device="xla")
    first, second = nn.Parameter(data), nn.Parameter(nn.Parameter(data), requires_grad=False)
    assert type(first) is type(second) is type(nn.Linear(2, 2, device="xla").weight) is nn.Parameter
    assert first.requires_grad and not second.requires_grad
    assert type(first)(data, requires_grad=False).device == data.device
    data.add_(1)
    assert first.tolist() == second.tolist() == [2, 2]  # data is shared, as on the CPU
    with pytest.raises(RuntimeError, match="floating point"):
        nn.Parameter(torch.ones(2, dtype=torch.int64, device="xla"))


@pytest.mark.parametrize("name", ["param", "buffer"])
def test_lazy_parameters_on_the_device_from_the_start(name: str) -> None:
    kind = nn.UninitializedParameter if name == "param" else nn.UninitializedBuffer
    with torch.device("xla"):
        default = kind()
    for made in (kind(device="xla", dtype=torch.float64), default):
        assert made.data.device.type == "xla"
        made.materialize((2, 2))
        with torch.no_grad():
            assert made.device.type == "xla" and made.shape == (2, 2) and made.fill_(1).sum().item() == 4
    assert kind().data.device.type == "cpu"


def test_data_can_be_set_across_devices() -> None:
    parameter, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(3))
    parameter.data = parameter.data.to("xla")
    other.data = parameter.data
    assert type(parameter) is nn.Parameter and parameter.device.type == other.device.type == "xla" and other.shape == (2,)
    with torch.no_grad():
        parameter.mul_(3)
    assert other.tolist() == [3, 3]
    parameter.data = torch.arange(3.0)
    assert parameter.device.type == "cpu" and parameter.numpy(force=True).tolist() == [0, 1, 2] and other.tolist() == [3, 3]
    tensor = torch.ones(2)
    tensor.data = torch.full((1, 2), 7.0, device="xla")
    assert type(tensor) is Tensor and tensor.shape == (1, 2) and (tensor + tensor).tolist() == [[14, 14]]
    assert copy.deepcopy(tensor).tolist() == [[7, 7]] and pickle.loads(pickle.dumps(tensor)).tolist() == [[7, 7]]


def test_what_cannot_take_the_data_says_so() -> None:
    on_meta = torch.ones(2, device="meta")
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        on_meta.data = torch.ones(2, device="xla")
    ours_ = torch.ones(2, device="xla")
    with pytest.raises(RuntimeError, match="move it"):
        ours_.data = torch.ones(2)


# Operations on a parameter alone, which go through the device's own kernels, beside the same on the CPU.
ALONE: dict[str, Callable[[Tensor], Any]] = {
    "view": lambda p: p.view(-1)[2:],
    "transposed": lambda p: p.t() + 0,
    "rows": lambda p: list(p.unbind(0)),
    "split": lambda p: p.split(2, dim=1),
    "slice": lambda p: p[1:, ::2],
    "expand": lambda p: p[:1].expand(2, -1),
    "diagonal": lambda p: p.diagonal(),
    "squeeze": lambda p: p.unsqueeze(0).squeeze(0),
    "permute": lambda p: p.permute(1, 0),
    "clone": lambda p: p.clone(),
    "contiguous": lambda p: p.t().contiguous(),
    "dtype": lambda p: p.to(torch.float64),
    "sum": lambda p: p.sum(),
    "structured": lambda p: (p.sin(), p.max(1), p.sort(), p.cumsum(0)),
    "with numbers": lambda p: (p + 1, p.clamp(0, 1), p.pow(2)),
    "like": lambda p: (torch.zeros_like(p), torch.full_like(p, 3), p.new_ones(2), torch.empty_like(p).fill_(2)),
    "together": lambda p: (torch.cat([p, p]), torch.stack([p, p]), torch.einsum("ij,kj->ik", p, p)),
    "indices": lambda p: (p.nonzero(), p[p > 0], p.argmax(), p.topk(2)),
    "norm": lambda p: (p.norm(), torch.linalg.vector_norm(p), F.layer_norm(p, (4,))),
    "equal": lambda p: torch.equal(p, p),
    "list": lambda p: p.tolist(),
    "embedding": lambda p: F.embedding(torch.tensor([0, 1], device=p.device), p),
    "foreach": lambda p: torch._foreach_add([p, p], 1),
    "decomposed": lambda p: torch.linalg.svdvals(p),
    "number": lambda p: (float(p.detach()[0, 0]), bool(p[0, 0] > 0), p[0, 0].item()),
}


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("grad", [True, False])
def test_operations_on_parameters_alone(name: str, grad: bool) -> None:
    values = torch.tensor([[0.5, -1.0, 2.0, 0.1], [3.0, 0.2, -0.7, 1.5]])
    theirs = nn.Parameter(values.clone(), requires_grad=grad)
    mine = nn.Parameter(values.to("xla"), requires_grad=grad)
    wanted, found = ALONE[name](theirs), ALONE[name](mine)

    def to_cpu(item: Any) -> Any:
        if isinstance(item, Tensor):
            return item.detach().cpu()
        return [to_cpu(one) for one in item] if isinstance(item, (tuple, list)) else item

    torch.testing.assert_close(to_cpu(found), to_cpu(wanted), rtol=1e-5, atol=1e-6)


IN_PLACE: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda p: p.add_(1),
    "mul by itself": lambda p: p.mul_(p),
    "zero": lambda p: p.zero_(),
    "copy": lambda p: p.copy_(torch.arange(8.0).view(2, 4)),
    "row": lambda p: p[1].fill_(5),
    "through a view": lambda p: p.view(-1)[::3].sub_(2),
    "item": lambda p: p.__setitem__((0, slice(1, 3)), 9.0),
    "mask": lambda p: p.__setitem__(p > 0, 0.0),
    "transposed": lambda p: p.t_(),
    "unsqueezed": lambda p: p.unsqueeze_(0),
    "resized": lambda p: p.requires_grad_(False).resize_(3),
    "set": lambda p: p.set_(torch.ones(3, device=p.device)),
    "foreach": lambda p: torch._foreach_mul_([p], 2),
    "out": lambda p: torch.mul(p, 3, out=p),
    "lerp": lambda p: p.lerp_(torch.zeros(2, 4, device=p.device), 0.5),
    "sort": lambda p: torch.sort(p, out=(p, torch.empty(2, 4, dtype=torch.int64, device=p.device))),
    "nn.init": lambda p: nn.init.constant_(p, 4),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_parameters_are_written_in_place(name: str) -> None:
    values = torch.tensor([[0.5, -1.0, 2.0, 0.1], [3.0, 0.2, -0.7, 1.5]])
    theirs, mine = nn.Parameter(values.clone()), nn.Parameter(values.to("xla"))
    before = mine
    with torch.no_grad():
        for parameter in (theirs, mine):
            IN_PLACE[name](parameter)
    assert mine is before and type(mine) is nn.Parameter
    assert mine.shape == theirs.shape and mine._version == theirs._version
    torch.testing.assert_close(mine.detach().cpu(), theirs.detach())


def test_results_are_the_written_parameter_itself() -> None:
    parameter = nn.Parameter(torch.ones(2, 2, device="xla"), requires_grad=False)
    with torch.no_grad():
        assert parameter.add_(1) is parameter
        assert parameter.copy_(torch.zeros(2, 2)) is parameter and parameter.resize_(1) is parameter
        assert torch.ones(1, device="xla").copy_(parameter).tolist() == [0]
        assert torch.add(parameter, 1, out=parameter) is parameter and parameter.tolist() == [1]


def test_changes_of_shape_are_the_parameters_own() -> None:
    parameter = nn.Parameter(torch.arange(6.0, device="xla").view(2, 3))
    alias = parameter.detach()
    with torch.no_grad():
        parameter.t_()
    assert parameter.shape == (3, 2) and alias.shape == (2, 3) and alias.tolist() == [[0, 1, 2], [3, 4, 5]]
    alias.zero_()
    assert parameter.sum().item() == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["xla", "cpu", "double", "float", "add", "view", "data", "copy"]), min_size=1, max_size=8))
def test_any_order_of_moves_and_writes(actions: list[str]) -> None:
    mine, theirs = nn.Parameter(torch.arange(4.0)), nn.Parameter(torch.arange(4.0))
    module, plain = nn.ParameterList([mine]), nn.ParameterList([theirs])
    for action in actions:
        with torch.no_grad():
            if action in ("xla", "cpu"):
                module.to(action)
            elif action in ("double", "float"):
                getattr(module, action)(), getattr(plain, action)()
            elif action == "add":
                mine.add_(1), theirs.add_(1)
            elif action == "view":
                mine[1:3].mul_(2), theirs[1:3].mul_(2)
            elif action == "data":
                mine.data, theirs.data = mine.data + 1, theirs.data + 1
            else:
                mine.detach().copy_(theirs + 3), theirs.copy_(theirs + 3)
    assert module[0] is mine and mine.dtype == theirs.dtype
    torch.testing.assert_close(mine.detach().cpu(), theirs.detach())


def test_mixing_devices_is_an_error() -> None:
    parameter = nn.Parameter(torch.ones(2, device="xla"))
    for run in (lambda: parameter + torch.ones(2), lambda: torch.ones(2) + parameter, lambda: torch.ones(2, device="xla") + torch.ones(2)):
        with pytest.raises(RuntimeError, match="not an XLA tensor"):
            run()
    assert (parameter + torch.tensor(1.0)).tolist() == [2, 2]
    assert tensor_behind(torch.ones(2)) is None and tensor_behind(3) is None
    with pytest.raises(DeviceMismatchError):
        ours(torch.ones(2))


def test_properties_are_those_of_a_tensor_on_the_device() -> None:
    parameter = nn.Linear(3, 2).to("xla").weight
    assert parameter.is_xla and not parameter.is_cpu and not torch.ones(1).is_xla and parameter.type() == "torch.xla.FloatTensor"
    assert repr(parameter).startswith("Parameter containing:\ntensor([[") and "device='xla:0', requires_grad=True" in repr(parameter)
    assert parameter.untyped_storage().nbytes() == 24
    assert bytes(parameter.untyped_storage()) == bytes(parameter.detach().cpu().untyped_storage())
    with pytest.raises(TypeError, match="numpy"):
        parameter.detach().numpy()


def test_saved_and_loaded() -> None:
    module = Tied().to("xla")
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded.head.weight) is nn.Parameter and loaded.head.weight is loaded.embedding.weight and loaded.head.weight.is_xla
    torch.testing.assert_close(loaded.head.weight.detach().cpu(), module.head.weight.detach().cpu())
    weight = module.head.weight
    module.load_state_dict({name: value.cpu() * 2 for name, value in module.state_dict().items()})
    assert module.head.weight is weight
    module.load_state_dict({name: value.cpu() for name, value in module.state_dict().items()}, assign=True)
    assert type(module.head.weight) is nn.Parameter


def test_function_transforms_and_parametrizations() -> None:
    module = nn.Linear(3, 3).to("xla")
    found = torch.func.functional_call(
        module, {name: value * 2 for name, value in module.named_parameters()}, torch.ones(1, 3, device="xla")
    )
    torch.testing.assert_close(found.cpu(), 2 * module(torch.ones(1, 3, device="xla")).cpu())
    grads = torch.func.grad(lambda params: torch.func.functional_call(module, params, torch.ones(1, 3, device="xla")).sum())(
        dict(module.named_parameters())
    )
    assert grads["weight"].cpu().tolist() == [[1, 1, 1]] * 3
    nn.utils.parametrizations.weight_norm(module)
    module(torch.ones(1, 3, device="xla")).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    assert nn.utils.clip_grad_norm_(module.parameters(), 1e-3).item() > 0


def test_gradients_reach_parameters_in_recurrent_and_attention_modules() -> None:
    torch.manual_seed(0)
    for theirs in (nn.LSTM(3, 4, batch_first=True), nn.GRU(3, 4), nn.MultiheadAttention(3, 1, batch_first=True)):
        mine = copy.deepcopy(theirs).to("xla")
        x = torch.randn(2, 5, 3)
        arguments = (x,) * (3 if isinstance(theirs, nn.MultiheadAttention) else 1)
        theirs(*arguments)[0].sum().backward()
        mine(*[one.to("xla") for one in arguments])[0].sum().backward()
        for ours_, plain in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(ours_.grad.cpu(), plain.grad, rtol=1e-4, atol=1e-5)


def test_importing_does_not_register_what_only_parameters_need() -> None:
    """Kernels for tensors of torch's own types are made when the first one moves: they cost milliseconds."""
    program = (
        "import torch, torch_xla\n"
        "has = torch._C._dispatch_has_kernel_for_dispatch_key\n"
        "before = has('aten::clone', 'PrivateUse1')\n"
        "torch.nn.Linear(2, 2).to('xla')\n"
        "print(before, has('aten::clone', 'PrivateUse1'))\n"
    )
    run = forked_python.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]

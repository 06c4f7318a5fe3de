"""Offloading by accelerate: weights rest on the CPU, come to xla for their layer's forward, and results equal the CPU."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model, init_empty_weights, load_checkpoint_and_dispatch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_submodules
from accelerate.utils import set_module_tensor_to_device
from safetensors.torch import save_model
from torch import nn

XLA = torch.device("xla:0")


class Tied(nn.Module):
    """Words in, words out, with the same matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.mix = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(self.mix(self.embed(words))))
        return out


@pytest.fixture
def cpu() -> Tied:
    torch.manual_seed(0)
    return Tied().eval()


@pytest.fixture
def words() -> torch.Tensor:
    return torch.arange(6)


def check(model: nn.Module, cpu: nn.Module, words: torch.Tensor) -> None:
    with torch.no_grad():
        found = model(words)
        torch.testing.assert_close(found.cpu(), cpu(words), rtol=1e-5, atol=1e-5)


def test_cpu_offload_computes_on_xla(cpu: Tied, words: torch.Tensor) -> None:
    model = cpu_offload(copy.deepcopy(cpu), execution_device=XLA)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    for _ in range(2):
        check(model, cpu, words)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_offloaded_weights_come_back_when_hooks_are_removed(cpu: Tied, words: torch.Tensor) -> None:
    model = cpu_offload(copy.deepcopy(cpu), execution_device=XLA)
    remove_hook_from_submodules(model)
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    check(model, cpu, words)


def test_disk_offload_computes_on_xla(cpu: Tied, words: torch.Tensor, tmp_path: Path) -> None:
    check(disk_offload(copy.deepcopy(cpu), tmp_path, execution_device=XLA), cpu, words)


def test_dispatch_over_xla_and_the_cpu_with_offload(cpu: Tied, words: torch.Tensor) -> None:
    places = {"embed": "xla:0", "mix": "cpu", "norm": "xla:0", "head": "xla:0"}
    model = dispatch_model(copy.deepcopy(cpu), places, main_device="xla:0", force_hooks=True)
    assert model.embed.weight.device == XLA
    assert model.head.weight is model.embed.weight
    check(model, cpu, words)


def test_a_hook_that_places_a_layer_keeps_the_type_of_its_parameters(cpu: Tied) -> None:
    layer = copy.deepcopy(cpu.mix)
    add_hook_to_module(layer, AlignDevicesHook(execution_device=XLA, io_same_device=True))
    assert isinstance(layer.weight, nn.Parameter)
    assert type(layer.weight) is nn.Parameter
    inputs = torch.randn(3, 8)
    found = layer(inputs)
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, cpu.mix(inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["weights.bin", "weights.safetensors"])
def test_a_checkpoint_is_loaded_to_xla(cpu: Tied, words: torch.Tensor, tmp_path: Path, name: str) -> None:
    file = str(tmp_path / name)
    if name.endswith(".bin"):
        torch.save(cpu.state_dict(), file)
    else:
        save_model(cpu, file, metadata={"format": "pt"})
    with init_empty_weights():
        empty = Tied().eval()
    empty.head.weight = empty.embed.weight
    model = load_checkpoint_and_dispatch(empty, file, device_map={"": "xla:0"})
    assert {parameter.device.type for parameter in model.parameters()} == {"xla"}
    torch.testing.assert_close(model(words.to("xla")).cpu(), cpu(words), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("start", ["cpu", "meta", "xla:0"])
def test_setting_a_tensor_keeps_class_and_frozenness(start: str) -> None:
    layer = nn.Linear(2, 2, device=start)
    layer.weight.requires_grad_(False)
    value = torch.ones(2, 2)
    set_module_tensor_to_device(layer, "weight", XLA, value=value)
    assert type(layer.weight) is nn.Parameter
    assert not layer.weight.requires_grad
    assert layer.weight.device == XLA
    assert torch.equal(layer.weight.detach().cpu(), value)


@pytest.mark.parametrize("place", ["meta", "cpu"])
def test_a_tensor_leaves_xla(place: str) -> None:
    layer = nn.Linear(2, 2, device="xla")
    expected = layer.weight.detach().cpu()
    set_module_tensor_to_device(layer, "weight", place)
    assert type(layer.weight) is nn.Parameter
    assert layer.weight.device.type == place
    assert place == "meta" or torch.equal(layer.weight.detach(), expected)


def test_a_parameter_is_made_anew_by_its_type() -> None:
    parameter = nn.Parameter(torch.ones(3)).to("xla")
    layer = nn.Linear(2, 2).to("xla")
    made = type(layer.weight)(torch.ones(2, 2).to("xla"), requires_grad=False)
    assert type(made) is nn.Parameter and not made.requires_grad and made.device.type == "xla"
    assert isinstance(parameter, torch.Tensor) and not isinstance(parameter, nn.Parameter)  # as on any other device

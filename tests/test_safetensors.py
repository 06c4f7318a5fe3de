"""`safetensors.torch` saves and loads what is on the device as what is on the CPU: the same bytes, the same ties, the same refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, load_model, safe_open, save, save_file, save_model
from torch import Tensor, nn

import torch_xla
import torch_xla.debug.metrics as met


class Tied(nn.Module):
    """An embedding that is the head's weight, and the first of two stacked ones; a buffer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(5, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight


def base(device: str) -> Tensor:
    return torch.arange(12.0, device=device).reshape(3, 4)


# Tensors over one base, of which safetensors wants to know who shares what.
GROUPS: dict[str, Callable[[Tensor], dict[str, Tensor]]] = {
    "the same": lambda x: {"a": x, "b": x},
    "a parameter and its data": lambda x: {"a": (weight := nn.Parameter(x)), "b": weight.detach()},
    "two parameters": lambda x: {"a": nn.Parameter(x), "b": nn.Parameter(x)},
    "a row of it": lambda x: {"a": x, "b": x[0]},
    "rows apart": lambda x: {"a": x[0], "b": x[1]},
    "rows that overlap": lambda x: {"a": x[:2], "b": x[1:]},
    "one row": lambda x: {"a": x[1]},
    "parameters over rows": lambda x: {"a": nn.Parameter(x[0]), "b": nn.Parameter(x[1])},
    "a parameter over a row": lambda x: {"a": nn.Parameter(x), "b": nn.Parameter(x[0])},
    "another dtype": lambda x: {"a": x, "b": x.view(torch.int32)},
    "another shape": lambda x: {"a": x, "b": x.view(4, 3)},
    "nothing of it": lambda x: {"a": x[:0], "b": x[:0]},
    "copies": lambda x: {"a": x, "b": x.clone(), "c": x + 1},
    "empty": lambda x: {"a": x.new_empty(0), "b": x.new_empty(0)},
}


class Holding(nn.Module):
    """A module with these tensors."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)


def outcome(run: Callable[[], None], file: Path) -> bytes | tuple[type, list[str]]:
    """The bytes that were saved, or the error and its words, in any order: sets are printed there."""
    try:
        run()
    except (RuntimeError, ValueError) as error:
        return type(error), sorted(str(error).replace("{", " ").replace("}", " ").replace(",", " ").split())
    return file.read_bytes()


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_files_and_refusals_equal_the_cpu(group: Callable[[Tensor], dict[str, Tensor]], tmp_path: Path) -> None:
    def saved(device: str) -> list[bytes | tuple[type, list[str]]]:
        tensors, file = group(base(device)), tmp_path / f"{device}.safetensors"
        return [
            outcome(lambda: save_file(tensors, file), file),
            outcome(lambda: file.write_bytes(save(tensors)), file),
            outcome(lambda: save_model(Holding(tensors), str(file)), file),
        ]

    assert saved("xla") == saved("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn])
def test_each_dtype_is_saved_as_on_the_cpu(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.arange(6.0).reshape(2, 3).to(dtype)
    save_file({"x": values.to("xla")}, tmp_path / "x")
    found = load_file(tmp_path / "x")["x"]
    assert found.dtype is dtype and torch.equal(found.view(torch.uint8), values.view(torch.uint8))


def test_models_go_from_each_device_to_each_with_their_ties(tmp_path: Path) -> None:
    expected = Tied().state_dict()
    for source in ("cpu", "xla"):
        file = str(tmp_path / source)
        save_model(Tied().to(source), file)
        for target in ("cpu", "xla"):
            model = Tied(seed=1).to(target)
            assert load_model(model, file, device=target) == (set(), [])
            assert model.head.weight is model.embedding.weight
            for name, value in model.state_dict().items():
                assert value.device.type == target and torch.equal(value.cpu(), expected[name]), name
    assert (tmp_path / "cpu").read_bytes() == (tmp_path / "xla").read_bytes()
    assert len(load_file(tmp_path / "xla")) == len(expected) - 1, "the tied weight is there once"


def test_a_model_whose_tie_was_cut_does_not_load_half(tmp_path: Path) -> None:
    save_model(Tied().to("xla"), str(tmp_path / "tied"))
    model = Tied().to("xla")
    model.head.weight = nn.Parameter(torch.zeros(5, 4, device="xla"))
    with pytest.raises(RuntimeError, match="Missing key"):
        load_model(model, str(tmp_path / "tied"))


def test_a_loaded_model_trains_on_with_its_tie(tmp_path: Path) -> None:
    save_model(Tied().to("xla"), str(tmp_path / "model"))
    weights = []
    for device in ("cpu", "xla"):
        model = Tied(seed=1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        load_model(model, str(tmp_path / "model"), device=device)
        words = torch.tensor([0, 1, 4, 2], device=device)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model.head(model.body(model.embedding(words))), words).backward()
            optimizer.step()
            torch_xla.sync()
        weights.append(model.state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name].cpu(), value, rtol=1e-5, atol=1e-6)


def test_saving_what_is_computed_compiles_nothing(tmp_path: Path) -> None:
    model = Tied().to("xla")
    with torch.no_grad():
        model.embedding.weight.add_(1)
    torch_xla.sync()
    before = met.metric_data("CompileTime")
    save_model(model, str(tmp_path / "model"))
    assert met.metric_data("CompileTime") == before


def test_slices_of_a_file_come_to_the_device(tmp_path: Path) -> None:
    save_file({"x": base("xla")}, tmp_path / "x")
    with safe_open(tmp_path / "x", "pt", device="xla") as file:
        part = file.get_slice("x")[1:]
    assert part.device.type == "xla" and torch.equal(part.cpu(), base("cpu")[1:])

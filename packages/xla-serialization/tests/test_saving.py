"""Saving and loading whole checkpoints: every dtype, shared tensors, shards that other programs read, parts, loads into tensors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import torch_xla
import xla_serialization as checkpoint
from xla_core.abi import metrics
from xla_serialization import Checkpoint, DamagedCheckpointError, MismatchError
from xla_serialization.format.dtypes import DTYPES
from xla_serialization.format.manifest import INDEX

SHAPES = [(), (0,), (1,), (3, 5), (2, 0, 3), (1, 7, 1)]


def made(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Random bits: also those that make no number."""
    bits = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    return (bits % 2 == 1)[..., 0] if dtype is torch.bool else bits.view(dtype)[..., 0].clone()


def bits(tensor: torch.Tensor) -> bytes:
    """Of a tensor's elements in order."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.dtype, one.shape, bits(one)) == (other.dtype, other.shape, bits(other))


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def as_others_load(folder: Path) -> dict[str, torch.Tensor]:
    """As programs do that know the index of sharded safetensors checkpoints, and nothing of this package."""
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    loaded = {file: load_file(folder / file) for file in set(index["weight_map"].values())}
    found = {name: loaded[file][name] for name, file in index["weight_map"].items()}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in found.values())
    return found


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    data = {f"{shape}": made(dtype, shape) for shape in SHAPES}
    checkpoint.save(data, tmp_path)
    found = checkpoint.load(tmp_path)
    assert list(found) == list(data) and all(same(found[name], data[name]) for name in data)
    assert all(same(Checkpoint(tmp_path)[name], tensor) for name, tensor in data.items())
    others = as_others_load(tmp_path)
    for name, tensor in data.items():
        assert same(torch.view_as_complex(others[name]) if dtype is torch.complex128 else others[name], tensor)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_comes_back_from_and_to_the_device(tmp_path: Path, dtype: torch.dtype) -> None:
    data = {f"{shape}": made(dtype, shape).to("xla") for shape in SHAPES}
    checkpoint.save(data, tmp_path)
    on_cpu, on_device = checkpoint.load(tmp_path), checkpoint.load(tmp_path, device="xla")
    for name, tensor in data.items():
        assert on_device[name].device == tensor.device and on_cpu[name].device.type == "cpu"
        assert same(on_cpu[name], tensor) and same(on_device[name], tensor)


def test_views_are_saved_as_they_show(tmp_path: Path) -> None:
    base, complex_base = torch.randn(6, 8), torch.randn(4, 3, dtype=torch.complex128)
    data = {
        "base": base,
        "rows": base[1:3],
        "transposed": base.T,
        "every other": base[::2, ::3],
        "expanded": base[0].expand(3, 8),
        "flipped": base.flip(0),
        "conj": complex_base.conj(),
        "conj part": complex_base.to(torch.complex64).conj()[1:],
        "imaginary of conj": complex_base.conj().imag,
        "neg": torch._neg_view(complex_base),
        "on device": base.to("xla").T[1:4],
    }
    checkpoint.save(data, tmp_path)
    found = checkpoint.load(tmp_path)
    assert all(same(found[name], tensor) for name, tensor in data.items())
    assert all(tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in found.values())


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_tied_weights_are_stored_once_and_tied_again(tmp_path: Path, device: str) -> None:
    model = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(11, 4), "head": torch.nn.Linear(4, 11, bias=False)}).to(device)
    model["head"].weight = model["embedding"].weight
    checkpoint.save({"state": model.state_dict(), "parameters": list(model.parameters())}, tmp_path)
    held = Checkpoint(tmp_path)
    assert list(held) == ["state.embedding.weight"] and held.manifest.nbytes == 11 * 4 * 4
    assert held.manifest.nbytes < sum(file.stat().st_size for file in shards(tmp_path)) < held.manifest.nbytes + 512
    found = checkpoint.load(tmp_path, device=device)
    found["state"]["embedding.weight"].fill_(3)
    assert float(found["parameters"][0].detach().sum()) == float(found["state"]["head.weight"].sum()) == 3 * 44


def test_pending_tensors_are_computed_in_one_execution(tmp_path: Path) -> None:
    weight = torch.ones(4, 4).to("xla")
    torch_xla.sync()
    before = metrics.counter("ExecuteComputation"), metrics.counter("MarkStep")
    pending = {str(number): weight @ weight + number for number in range(5)}
    other = weight - 1
    checkpoint.save(pending, tmp_path)
    assert (metrics.counter("ExecuteComputation"), metrics.counter("MarkStep")) == (before[0] + 1, before[1])
    assert float(checkpoint.load(tmp_path)["3"].sum()) == 16 * 7.0 and float(other.sum()) == 0.0


def test_several_shards_are_read_by_other_programs(tmp_path: Path) -> None:
    data = {f"layer.{number}.{kind}": torch.randn(number + 1, 9) for number in range(7) for kind in ("weight", "bias")}
    checkpoint.save(data, tmp_path, shard_bytes=500)
    files = shards(tmp_path)
    assert len(files) > 4 and all(file.stat().st_size < 500 + 4096 for file in files)
    assert all(f"-{number:05d}-of-{len(files):05d}-" in file.name for number, file in enumerate(files, 1))
    found, ours = as_others_load(tmp_path), checkpoint.load(tmp_path)
    assert found.keys() == data.keys() and list(ours) == list(data)
    assert all(same(found[name], data[name]) and same(ours[name], data[name]) for name in data)


def test_one_tensor_larger_than_a_shard_has_a_shard_of_its_own(tmp_path: Path) -> None:
    data = {"small": torch.ones(2), "large": torch.ones(100), "last": torch.ones(3)}
    checkpoint.save(data, tmp_path, shard_bytes=16)
    assert [list(load_file(file)) for file in shards(tmp_path)] == [["small"], ["large"], ["last"]]
    with pytest.raises(ValueError, match="shard_bytes is 0"):
        checkpoint.save(data, tmp_path, shard_bytes=0)
    assert checkpoint.load(tmp_path).keys() == data.keys()


def test_data_is_aligned(tmp_path: Path) -> None:
    data = {f"{str(dtype)[6:]}{'x' * number}": made(dtype, (3,)) for number, dtype in enumerate(DTYPES.values())}
    checkpoint.save(data, tmp_path)
    (file,) = shards(tmp_path)
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert (8 + length) % 64 == 0 and header.pop("__metadata__") == {"format": "pt"}
    end = 0
    for name, entry in header.items():
        assert entry["data_offsets"][0] == end and end % min(data[name].dtype.itemsize, 8) == 0
        end = entry["data_offsets"][1]
    assert 8 + length + end == len(raw)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_progress_adds_up(tmp_path: Path, device: str) -> None:
    data = {"a": torch.ones(5, device=device), "b": [torch.ones(7, device=device), torch.ones(0)], "c": torch.ones(()).double()}
    data["tied"] = data["a"]
    reported: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> None:
        reported.append((done, total))

    for act in (
        lambda: checkpoint.save(data, tmp_path, shard_bytes=24, progress=tell),
        lambda: checkpoint.load(tmp_path, device=device, progress=tell),
        lambda: checkpoint.load_into(data, tmp_path, progress=tell),
    ):
        reported.clear()
        act()
        done = [one for one, _ in reported]
        assert len(reported) == 4 and done == sorted(done) and done[-1] == 56 and {total for _, total in reported} == {56}


def test_a_loaded_tensor_is_its_own(tmp_path: Path) -> None:
    checkpoint.save({"w": torch.ones(1000)}, tmp_path)
    for device in ("cpu", "xla"):
        found = checkpoint.load(tmp_path, device=device)["w"]
        found += 1
        torch_xla.sync()
        assert float(found.sum()) == 2000.0
        assert float(checkpoint.load(tmp_path)["w"].sum()) == 1000.0


def test_a_checkpoint_is_a_mapping_that_later_saves_do_not_change(tmp_path: Path) -> None:
    checkpoint.save({"a": torch.ones(2), "b": {"c": torch.zeros(3)}, "step": 4}, tmp_path)
    held = Checkpoint(tmp_path)
    assert list(held) == ["a", "b.c"] and len(held) == 2 and "a" in held and held.bytes_read == 0
    checkpoint.save({"a": torch.zeros(9)}, tmp_path)
    assert torch.equal(held["a"], torch.ones(2)) and held.bytes_read == 8
    assert held.nesting()["step"] == 4
    assert torch.equal(Checkpoint(tmp_path)["a"], torch.zeros(9))
    with pytest.raises(KeyError, match="missing"):
        held["missing"]
    with pytest.raises(checkpoint.MissingCheckpointError, match="no such folder"):
        Checkpoint(tmp_path / "nowhere")


def test_a_default_device_changes_nothing(tmp_path: Path) -> None:
    state = {"large": torch.arange(1 << 18, dtype=torch.float32), "empty": torch.zeros(0, 2), "array": np.arange(4)}
    with torch.device("xla"):
        checkpoint.save(state, tmp_path)
        here, there = checkpoint.load(tmp_path), checkpoint.load(tmp_path, device="xla")
    assert same(here["large"], state["large"]) and same(here["empty"], state["empty"]) and here["array"].tolist() == [0, 1, 2, 3]
    assert {there[name].device.type for name in ("large", "empty")} == {"xla"} and same(there["large"].cpu(), state["large"])


def test_mapped_tensors_show_the_file_and_may_be_written_to(tmp_path: Path) -> None:
    state = {"a": torch.arange(5000.0), "b": [torch.ones(3, dtype=torch.bfloat16), torch.zeros(0, 2), torch.tensor(7)]}
    state["again"] = state["a"]
    checkpoint.save(state, tmp_path)
    found = checkpoint.load(tmp_path, mmap=True)
    assert found["again"] is found["a"] and same(found["a"], torch.arange(5000.0))
    assert all(same(one, wanted) for one, wanted in zip(found["b"], state["b"], strict=True))
    found["a"].add_(1)
    assert same(checkpoint.load(tmp_path)["a"], torch.arange(5000.0)), "not the file itself"
    checkpoint.save({"a": torch.zeros(1)}, tmp_path)
    assert same(found["a"], torch.arange(5000.0) + 1) and same(found["b"][0], state["b"][0])
    with pytest.raises(ValueError, match="mmap=True is for tensors on the CPU, not on xla"):
        checkpoint.load(tmp_path, device="xla", mmap=True)


def test_of_many_mapped_tensors_the_damaged_one_is_named(tmp_path: Path) -> None:
    state = {f"layer{number}": torch.full((2000,), float(number)) for number in range(20)}
    checkpoint.save(state, tmp_path)
    seen: list[int] = []
    found = checkpoint.load(tmp_path, mmap=True, progress=lambda done, total: seen.append(done))
    assert all(same(found[name], wanted) for name, wanted in state.items()) and seen[-1] == 20 * 8000
    (shard,) = tmp_path.glob("*.safetensors")
    with open(shard, "r+b") as file:
        file.seek(-3 * 8000 - 1, os.SEEK_END)
        file.write(b"\x55")
    with pytest.raises(DamagedCheckpointError, match="the data of tensor 'layer16' has changed"):
        checkpoint.load(tmp_path, mmap=True)
    assert not same(checkpoint.load(tmp_path, mmap=True, verify=False)["layer16"], state["layer16"])


TENSOR = torch.arange(5 * 6 * 7).reshape(5, 6, 7)


WHOLE = {
    "three": TENSOR,
    "bytes": TENSOR.to(torch.uint8)[0],
    "none": torch.tensor(5),
    "complex": TENSOR[0] * torch.tensor(1 + 2j, dtype=torch.complex128),
    "empty": torch.zeros(0, 3),
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of `WHOLE`."""
    folder = tmp_path_factory.mktemp("parts")
    checkpoint.save(WHOLE, folder)
    return folder


_BOUNDS = st.none() | st.integers(-9, 9)


@given(name=st.sampled_from(sorted(WHOLE)), bounds=st.lists(st.tuples(_BOUNDS, _BOUNDS), max_size=3))
def test_a_part_is_what_slicing_gives_and_no_more_is_read(parts: Path, name: str, bounds: list[tuple[Any, Any]]) -> None:
    held, whole = Checkpoint(parts), WHOLE[name]
    index = tuple(slice(start, stop) for start, stop in bounds)
    if len(index) > whole.dim():
        with pytest.raises(IndexError, match="dimensions"):
            held.part(name, index)
        return
    wanted = whole[index]
    assert same(held.part(name, index), wanted)
    assert held.bytes_read == wanted.nbytes


def test_parts_have_no_steps(parts: Path) -> None:
    with pytest.raises(ValueError, match="without steps"):
        Checkpoint(parts).part("three", (slice(0, 4, 2),))


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_load_into_writes_the_tensors_that_are_there(tmp_path: Path, device: str) -> None:
    model, other = (torch.nn.Linear(3, 4).to(device) for _ in range(2))
    checkpoint.save({"model": model.state_dict(), "step": 7, "history": [1.5]}, tmp_path)
    state: dict[str, Any] = {"model": other.state_dict(), "step": 0, "history": [0.0]}
    found = checkpoint.load_into(state, tmp_path)
    assert found["step"] == 7 and found["history"] == [1.5]
    assert found["model"]["weight"] is state["model"]["weight"]
    assert same(other.weight, model.weight) and same(other.bias, model.bias) and other.weight.device.type == device


def test_load_into_parameters_gives_these_parameters(tmp_path: Path) -> None:
    saved, there = (torch.nn.Linear(3, 4) for _ in range(2))
    checkpoint.save(list(saved.parameters()), tmp_path)
    assert all(
        one is other for one, other in zip(checkpoint.load_into(list(there.parameters()), tmp_path), there.parameters(), strict=True)
    )
    assert same(saved.weight, there.weight)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"x": torch.zeros(3)}, r"b.x: the checkpoint has float32\[2\], the tensor is float32\[3\]"),
        ({"x": torch.zeros(2).double()}, r"b.x: the checkpoint has float32\[2\], the tensor is float64\[2\]"),
        ({"y": torch.zeros(2)}, "b: other keys"),
        ([torch.zeros(2)], "b: a mapping in the checkpoint, a sequence in"),
        (None, "b: a mapping in the checkpoint, a plain value in"),
    ],
)
def test_nothing_is_loaded_into_what_does_not_fit(tmp_path: Path, second: Any, said: str) -> None:
    checkpoint.save({"a": torch.ones(2), "b": {"x": torch.ones(2)}}, tmp_path)
    state = {"a": torch.zeros(2), "b": second}
    with pytest.raises(MismatchError, match=said):
        checkpoint.load_into(state, tmp_path)
    assert float(state["a"].sum()) == 0.0


def test_one_tensor_is_not_loaded_from_two(tmp_path: Path) -> None:
    checkpoint.save([torch.ones(2), torch.zeros(2)], tmp_path)
    tied = torch.full((2,), 5.0)
    with pytest.raises(MismatchError, match="one tensor, which stands where the checkpoint has two, 0 and 1"):
        checkpoint.load_into([tied, tied], tmp_path)
    assert float(tied.sum()) == 10.0

"""Files of torch.save, in both of its formats, beside the CPU: the same values, and the same tensors that share data."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_xla

FORMATS = pytest.mark.parametrize("new_format", [True, False], ids=["zip", "older"])
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool, torch.uint16, torch.float8_e5m2)


def saved(thing: Any, new_format: bool) -> io.BytesIO:
    """A file with `thing`."""
    file = io.BytesIO()
    torch.save(thing, file, _use_new_zipfile_serialization=new_format)
    file.seek(0)
    return file


@FORMATS
@pytest.mark.parametrize("weights_only", [True, False])
def test_many_tensors(new_format: bool, weights_only: bool) -> None:
    tensors = [torch.full((200, 200), float(number), device="xla") for number in range(30)]
    for place, device in ((None, "xla:0"), ("cpu", "cpu"), (lambda storage, location: storage, "cpu"), ("xla", "xla:0")):
        loaded = torch.load(saved(tensors, new_format), map_location=place, weights_only=weights_only)
        assert {str(tensor.device) for tensor in loaded} == {device}
        assert [tensor.unique().tolist() for tensor in loaded] == [[number] for number in range(30)]


@FORMATS
def test_dtypes(new_format: bool) -> None:
    for dtype in DTYPES if new_format else DTYPES[:-2]:  # torch writes no others in the older format
        tensor = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
        loaded = torch.load(saved([tensor.to("xla").t(), tensor.t()], new_format))
        assert [str(twin.device) for twin in loaded] == ["xla:0", "cpu"]
        for twin in loaded:
            assert (twin.dtype, twin.stride()) == (dtype, (1, 3))
            assert twin.cpu().t().view(torch.uint8).equal(tensor.view(torch.uint8))


@FORMATS
def test_attributes_parameters_and_lazy_bits(new_format: bool) -> None:
    noted = torch.ones(2, device="xla")
    noted.note = "mine"  # type: ignore[attr-defined]
    parameter = torch.nn.Parameter(torch.ones(2, device="xla"))
    conjugate = torch.tensor([1 + 2j], device="xla").conj()
    thing = [noted, parameter, conjugate, parameter, noted.requires_grad_()]
    first, second, third, fourth, fifth = torch.load(saved(thing, new_format), weights_only=False)
    assert first.note == "mine" and second is fourth and first is fifth and first.requires_grad
    assert isinstance(second, torch.nn.Parameter) and second.requires_grad
    assert third.is_conj() and third.tolist() == [1 - 2j] and (third * 1j).tolist() == [2 + 1j]
    for made in (lambda x: x.conj(), lambda x: x.conj().imag, lambda x: x.imag, lambda x: x.conj().conj()):
        origin = torch.tensor([1 + 2j, 3 - 4j])
        for tensor in (made(origin), made(origin.to("xla"))):
            loaded = torch.load(saved(tensor, new_format), map_location="xla")
            assert (loaded.is_conj(), loaded.is_neg()) == (tensor.is_conj(), tensor.is_neg())
            assert loaded.tolist() == tensor.tolist() and (loaded * 2).tolist() == (tensor * 2).tolist()
            assert torch.load(saved(loaded, new_format), map_location="cpu").tolist() == tensor.tolist()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storages() -> None:
    tensor = torch.tensor([1, 2, 3], dtype=torch.uint8, device="xla")
    assert torch.is_storage(tensor.untyped_storage()) and not torch.is_storage(tensor)
    for storage in (tensor.untyped_storage(), tensor.storage()):
        assert list(torch.load(saved(storage, True), map_location="cpu")) == [1, 2, 3]
        again = torch.empty(0, dtype=torch.uint8, device="xla").set_(torch.load(saved(storage, True)))
        assert again.tolist() == [1, 2, 3]


def test_the_older_format_of_others() -> None:
    data = torch.arange(6.0).reshape(2, 3)

    class Theirs:
        """Pickled as tensors of device xla were before torch wrote their storages."""

        def __reduce__(self) -> Any:
            return torch._utils._rebuild_device_tensor_from_cpu_tensor, (data.t(), data.dtype, "xla:0", True)

    for new_format in (True, False):
        loaded = torch.load(saved([Theirs(), Theirs()], new_format), weights_only=True)
        for tensor in loaded:
            assert tensor.device.type == "xla" and tensor.requires_grad and tensor.tolist() == data.t().tolist()


def test_a_tensor_whose_data_only_the_pickle_shows() -> None:
    class Maker:
        """Makes its tensor while it is pickled."""

        def __reduce__(self) -> Any:
            return list, ([torch.full((3,), 7.0, device="xla")],)

    for new_format in (True, False):
        assert torch.load(saved([Maker(), Maker()], new_format), weights_only=False)[1][0].tolist() == [7, 7, 7]
    assert pickle.loads(pickle.dumps(Maker()))[0].tolist() == [7, 7, 7]


def test_saving_without_data() -> None:
    file = io.BytesIO()
    with torch.serialization.skip_data():
        torch.save(torch.ones(300, device="xla"), file)
    file.seek(0)
    assert torch.load(file).shape == (300,)


def test_tensors_are_saved_without_a_program() -> None:
    from torch_xla.debug import metrics

    tensors = [torch.ones(size, device="xla") for size in range(3, 9)]
    torch_xla.sync()
    metrics.clear_all()
    saved([tensors, [tensor.t() for tensor in tensors]], True)
    assert metrics.metric_data("CompileTime") is None


def windows(tensor: torch.Tensor, picks: list[int]) -> list[torch.Tensor]:
    """Tensors over the same data."""
    ways = [
        lambda x: x, lambda x: x[1:], lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[0], lambda x: x.flatten()[3:5],
        lambda x: x.expand(2, *x.shape), lambda x: x.detach()[:1, :1],
    ]  # fmt: skip
    return [ways[pick](tensor) for pick in picks]


PICKS = st.lists(st.integers(0, 7), min_size=1, max_size=5)


@settings(max_examples=60)
@given(PICKS, PICKS, st.sampled_from([None, "xla:0", "cpu"]), st.booleans(), st.booleans(), st.integers(0, 9))
def test_windows_of_shared_data(
    first: list[int], second: list[int], place: str | None, new_format: bool, on_cpu: bool, written: int
) -> None:
    origin = [torch.arange(12.0).reshape(3, 4), torch.arange(12, 24).reshape(4, 3).t()]
    expected = [*windows(origin[0], first), *windows(origin[1], second)]
    thing = expected if on_cpu else [*windows(origin[0].to("xla"), first), *windows(origin[1].to("xla"), second)]
    loaded = torch.load(saved(thing, new_format), map_location=place)
    twins = torch.load(saved(expected, new_format))
    assert [tensor.stride() for tensor in loaded] == [tensor.stride() for tensor in twins]
    assert [tensor.tolist() for tensor in loaded] == [tensor.tolist() for tensor in twins]
    for tensors in (loaded, twins):
        tensors[written % len(tensors)][..., 0].fill_(100)
    assert [tensor.tolist() for tensor in loaded] == [tensor.tolist() for tensor in twins]

"""Storages say who shares data, by objects and by numbers, as they do on the CPU; nobody reads what they stand for."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import forked_python
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

SHOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x,
    "detached": lambda x: x.detach(),
    "a parameter": nn.Parameter,
    "a detached parameter": lambda x: nn.Parameter(x).detach(),
    "a row": lambda x: x[1],
    "a parameter over a row": lambda x: nn.Parameter(x[2]),
    "an element": lambda x: x[1, 2],
    "cut columns": lambda x: x[:, 1:3],
    "transposed": lambda x: x.t(),
    "other dtype": lambda x: x.view(torch.uint8)[1],
    "nothing": lambda x: x[:0],
    "a parameter over nothing": lambda x: nn.Parameter(x[3:]),
}


def placed(tensor: Tensor, base: Tensor) -> tuple[int, int, int]:
    """Where a tensor begins in the storage of `base`, where its own storage does, and the size of that."""
    begin = base.untyped_storage().data_ptr()
    storage = tensor.untyped_storage()
    return tensor.data_ptr() - begin if tensor.data_ptr() else -1, storage.data_ptr() - begin, storage.nbytes()


@pytest.mark.parametrize("show", SHOWN.values(), ids=SHOWN)
def test_places_in_a_storage_equal_the_cpu(show: Callable[[Tensor], Tensor]) -> None:
    cpu = torch.arange(12.0).reshape(3, 4)
    xla = cpu.to("xla")
    assert placed(show(xla), xla) == placed(show(cpu), cpu)
    assert show(xla).untyped_storage() is xla.untyped_storage()


def test_a_storage_keeps_its_number_whatever_is_written() -> None:
    x = torch.ones(3, device="xla")
    before = x.data_ptr()
    x.add_(1)
    torch.ops.aten.resize_(torch.ones(1, device="xla"), (2000,))
    assert x.tolist() == [2, 2, 2] and x.data_ptr() == before == x.untyped_storage().data_ptr()


def test_storages_do_not_overlap() -> None:
    tensors = [torch.ones(size, device="xla") for size in (1, 128, 129, 1000, 3)] + [nn.Parameter(torch.ones(300, device="xla"))]
    ranges = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors)
    assert all(end <= begin for (_, end), (begin, _) in zip(ranges, ranges[1:], strict=False))
    assert all(begin % 512 == 0 for begin, _ in ranges)


def test_an_empty_storage_has_no_number() -> None:
    assert torch.ones(0, device="xla").data_ptr() == 0 == torch.ones(0, device="xla").untyped_storage().data_ptr()


def test_tied_weights_are_one_storage_after_moving_and_after_data_was_set() -> None:
    first, second = nn.Linear(2, 2).to("xla"), nn.Linear(2, 2).to("xla")
    assert first.weight.data_ptr() != second.weight.data_ptr()
    second.weight.data = first.weight.data
    assert first.weight.data_ptr() == second.weight.data_ptr()
    assert first.weight.untyped_storage() is second.weight.untyped_storage()


def test_threads_that_ask_first_together_are_told_the_same() -> None:
    for _ in range(50):
        x, answers, start = torch.ones(2, device="xla"), [], threading.Barrier(4)

        def ask(x: Tensor = x, answers: list[int] = answers, start: threading.Barrier = start) -> None:
            start.wait()
            answers.append(x.data_ptr())

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(answers) == {x.data_ptr()}


@pytest.mark.parametrize("read", [bytes, torch.UntypedStorage.cpu, torch.UntypedStorage.tolist])
@pytest.mark.parametrize("kind", [nn.Parameter, torch.Tensor.detach], ids=["plain", "xla"])
def test_storages_whose_tensors_are_gone_cannot_be_read(
    kind: Callable[[Tensor], Tensor], read: Callable[[torch.UntypedStorage], object]
) -> None:
    with pytest.raises(NotImplementedError):
        read(kind(torch.ones(2, device="xla")).untyped_storage())


def test_who_takes_a_number_for_an_address_is_stopped() -> None:
    """The number lies where no process has memory: C code reads nothing wrong from there."""
    program = "import ctypes, torch, torch_xla; ctypes.string_at(torch.ones(4096, device='xla').data_ptr(), 1)"
    assert forked_python.run([sys.executable, "-c", program], capture_output=True, check=False).returncode < 0


def test_errors_of_torch_stay() -> None:
    with pytest.raises(RuntimeError, match="doesn't have storage"):
        torch.func.vmap(lambda x: x + x.data_ptr())(torch.ones(2))


class Mode(TorchFunctionMode):
    """Sees each function of torch and calls it: C++ asks modes for methods by their names."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Mode, lambda: torch.device("xla")], ids=["function mode", "default device"])
def test_parameters_are_found_under_function_modes(mode: Callable[[], Any]) -> None:
    layer, expected = nn.Linear(3, 2).to("xla"), nn.Linear(3, 2)
    expected.load_state_dict({name: value.cpu() for name, value in layer.state_dict().items()})
    inputs, other = torch.arange(6.0).reshape(2, 3), torch.full((2, 3), 0.5)
    moved, moved_other = inputs.to("xla"), other.to("xla")
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (layer, expected)]
    with mode():
        for _ in range(2):
            layer(moved).square().sum().backward()
            optimizers[0].step()
        pointers = [each.untyped_storage().data_ptr() for each in layer.parameters()]
        assert len({*pointers, layer.weight.data_ptr(), layer.bias.data_ptr()}) == 2
        layer.weight.data = moved_other
        result = layer(moved)
    for _ in range(2):
        expected(inputs).square().sum().backward()
        optimizers[1].step()
    torch.testing.assert_close(layer.bias.cpu(), expected.bias)
    expected.weight.data = other
    torch.testing.assert_close(result.cpu(), expected(inputs))


@pytest.mark.parametrize("view", [torch.conj, lambda x: x.conj().imag, lambda x: x.conj()[1:]], ids=["conjugate", "negative", "part"])
def test_set_takes_the_memory_of_a_lazy_view_as_it_is(view: Callable[[Tensor], Tensor]) -> None:
    results = []
    for device in ("cpu", "xla"):
        x = torch.tensor([1 + 2j, 3 - 1j, -2j]).to(device)
        shown = view(x)
        y = torch.zeros_like(shown)
        y.set_(shown)
        flags = y.is_conj(), y.is_neg()
        y.mul_(2)
        results.append((flags, y.tolist(), x.tolist()))
    assert results[0] == results[1]


STORAGES: list[Callable[[str], Any]] = [
    lambda d: torch.UntypedStorage([1, 2, 3], device=d),
    lambda d: torch.UntypedStorage(3, device=d).fill_(7),
    lambda d: torch.UntypedStorage(device=d),
    lambda d: torch.UntypedStorage(3, device=d).copy_(torch.UntypedStorage([4, 5, 6])),
    lambda d: torch.UntypedStorage([1, 2, 3]).copy_(torch.UntypedStorage([4, 5, 6], device=d)),
    lambda d: torch.UntypedStorage([1, 2, 3]).to(device=torch.device(d)),
    lambda d: torch.UntypedStorage([1, 2, 3], device=d).cpu(),
    lambda d: torch.UntypedStorage([1, 2, 3], device=d).clone(),
    lambda d: torch.TypedStorage([1, 2], dtype=torch.float32, device=d),
    lambda d: torch.TypedStorage(2, dtype=torch.float32, device=d).fill_(2.5),
    lambda d: torch.FloatStorage([1.5, 2.5]).to(device=torch.device(d)),
    lambda d: torch.arange(3.0, device=d).storage(),  # the tensor is gone: a storage keeps the data
    lambda d: torch.arange(3.0, device=d).storage().clone(),
    lambda d: torch.arange(3.0, device=d).storage().double(),
    lambda d: nn.Parameter(torch.arange(3.0, device=d)).storage(),
]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("make", STORAGES, ids=lambda make: f"line {make.__code__.co_firstlineno}")
def test_storages_of_both_kinds(make: Callable[[str], Any]) -> None:
    storage, expected = make("xla"), make("cpu")
    assert storage.tolist() == expected.tolist() and storage.nbytes() == expected.nbytes()
    if storage.device.type == "xla":
        assert storage.is_xla and storage.xla().tolist() == expected.tolist()
        if storage.nbytes():
            storage[0] = expected[0] = 1
            assert storage.tolist() == expected.tolist() and storage[0] == 1


def test_data_ends_with_the_storages_that_keep_it() -> None:
    kept = torch.UntypedStorage(3, device="xla")
    behind = weakref.ref(kept.behind())
    shown = torch.empty(0, dtype=torch.uint8, device="xla").set_(kept)
    assert shown.data_ptr() == kept.data_ptr()
    typed = shown.storage()
    del kept, shown
    assert behind() is not None
    del typed
    assert behind() is None


def test_storages_of_other_sizes_are_refused() -> None:
    for one, other in (("xla", "cpu"), ("cpu", "xla"), ("cpu", "cpu")):
        with pytest.raises(RuntimeError, match="size does not match, self was 3 bytes but src was 2 bytes"):
            torch.UntypedStorage(3, device=one).copy_(torch.UntypedStorage(2, device=other))


def test_what_is_moved_by_the_name_of_the_device() -> None:
    """The methods that torch gives to devices from outside."""
    assert torch.ones(2).xla().device == torch.ones(2).xla(0).device == torch.device("xla:0")
    assert nn.Linear(1, 1).xla().weight.is_xla
    packed = nn.utils.rnn.pack_sequence([torch.ones(3)])
    assert packed.xla().is_xla and not packed.is_xla

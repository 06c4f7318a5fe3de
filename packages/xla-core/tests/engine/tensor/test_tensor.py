"""What a user sees of an xla tensor: names, text, metadata, moves, copies, pickles."""

from __future__ import annotations

import copy
import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_python
import numpy as np
import pytest
import torch
from torch import nn

import torch_xla
import torch_xla._XLAC
import torch_xla.core.xla_model as xm
from xla_core.engine.tensor.tensor import XLATensor

Tensor = torch.Tensor
Counts = Any
Run = Callable[..., str]


def numbers(*values: float, **options: Any) -> Tensor:
    return torch.tensor(values, device="xla", **options)


def test_devices_are_named_xla() -> None:
    for tensor in (
        torch.zeros(2, device="xla"),
        torch.zeros(2, device="xla:0"),
        torch.zeros(2, device=torch.device("xla", 0)),
        torch.zeros(2).to("xla"),
        torch.zeros(2).to(torch.device("xla")),
        torch.zeros(2, device=xm.xla_device()),
        torch.tensor([1.0], device="xla"),
        torch.arange(3, device="xla"),
        torch.from_numpy(np.ones(2)).to("xla"),
        nn.Linear(2, 2).to("xla").weight,
        nn.Linear(2, 2, device="xla").bias,
        torch.zeros(2, device="xla").new_empty(3),
        torch.ones_like(torch.zeros(2), device="xla"),
    ):
        assert str(tensor.device) == "xla:0"
        assert tensor.device == torch.device("xla", 0)
        assert tensor.is_xla and xm.is_xla_tensor(tensor) and not tensor.is_cpu and not tensor.is_cuda
        assert tensor.get_device() == 0
    with torch.device("xla"):
        assert torch.ones(1).device == nn.Linear(1, 1).weight.device == torch.device("xla:0")


def test_the_default_device(run: Run) -> None:
    output = run(
        """
        import torch, torch_xla
        print(torch.ones(1, device="xla").device, torch_xla.device(2), torch.ones(1, device="xla").device)
        torch.set_default_device("xla:1")
        print(torch.ones(1).device, torch.tensor([1]).device, torch.accelerator.current_accelerator())
        """,
        CPU_NUM_DEVICES="3",
    )
    assert output.splitlines() == ["xla:0 xla:2 xla:2", "xla:1 xla:1 xla"]


def test_moves_to_the_default_device(run: Run) -> None:
    output = run(
        """
        import threading
        import torch, torch_xla
        import torch_xla.core.xla_model as xm
        x = torch.ones(1)
        print(x.to("xla").device)
        torch_xla.device(1)
        moved = [x.to("xla"), x.to(torch.device("xla")), x.to(device="xla"), x.to("xla", torch.float64)]
        moved += [torch.nn.Linear(1, 1).to("xla").weight, torch.ones(1, device="xla:0").to("xla"), x.to(torch.ones(1, device="xla"))]
        moved += [torch.tensor([1], device="xla"), torch.as_tensor([1], device="xla"), torch.asarray([1], device="xla")]
        print({str(each.device) for each in moved}, moved[3].dtype)
        print(x.to("xla:0").device, x.to("cpu").device, x.to(torch.float64).device, x.to(dtype=torch.float64).dtype)
        other = []
        thread = threading.Thread(target=lambda: other.append(x.to("xla").device))
        thread.start()
        thread.join()
        print(other[0])
        """,
        CPU_NUM_DEVICES="2",
    )
    assert output.splitlines() == ["xla:0", "{'xla:1'} torch.float64", "xla:0 cpu cpu torch.float64", "xla:0"]


SHOWN: dict[str, Callable[[str], Any]] = {
    "floats": lambda d: torch.tensor([1.0, 2.5], device=d),
    "longs": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "ints": lambda d: torch.tensor([1, 2], device=d, dtype=torch.int32),
    "bools": lambda d: torch.tensor([True, False], device=d),
    "doubles": lambda d: torch.tensor([1.0, 1e-9], device=d, dtype=torch.float64),
    "halves": lambda d: torch.tensor([1.0, 2.0], device=d, dtype=torch.bfloat16),
    "complex": lambda d: torch.tensor([1 + 2j], device=d),
    "conjugate": lambda d: torch.tensor([1 + 2j], device=d).conj(),
    "scalar": lambda d: torch.tensor(3.5, device=d),
    "nothing": lambda d: torch.tensor([], device=d),
    "no_rows": lambda d: torch.empty(0, 3, dtype=torch.int64, device=d),
    "cut": lambda d: torch.arange(3000.0, device=d).view(30, 100),
    "specials": lambda d: torch.tensor([float("nan"), float("inf"), -0.0], device=d),
    "leaf": lambda d: torch.ones(2, device=d, requires_grad=True),
    "computed": lambda d: torch.ones(2, device=d, requires_grad=True) * 2,
    "computed_view": lambda d: torch.ones(2, 1, device=d, requires_grad=True).t(),
    "parameter": lambda d: nn.Parameter(torch.ones(2, device=d)),
    "frozen_parameter": lambda d: nn.Parameter(torch.ones(2, device=d), requires_grad=False),
    "list": lambda d: [torch.ones(1, device=d), torch.zeros(1, device=d)],
}


@pytest.mark.parametrize("make", list(SHOWN.values()), ids=list(SHOWN))
def test_text_is_torchs_with_the_device(make: Callable[[str], Any]) -> None:
    cpu, xla = make("cpu"), make("xla")
    for show in (repr, str):
        text = show(xla)
        assert text.count(", device='xla:0'") == (2 if isinstance(xla, list) else 1)
        assert text.replace(", device='xla:0'", "") == show(cpu)


def test_the_device_stands_where_torch_puts_it() -> None:
    shown = repr(torch.ones(1, dtype=torch.int8, device="xla"))
    assert shown == "tensor([1], device='xla:0', dtype=torch.int8)"
    assert repr(numbers(1.0, requires_grad=True) * 2) == "tensor([2.], device='xla:0', grad_fn=<MulBackward0>)"


def test_text_follows_print_options_and_formats() -> None:
    torch.set_printoptions(precision=2)
    try:
        assert repr(numbers(1.23456)) == "tensor([1.23], device='xla:0')"
    finally:
        torch.set_printoptions(profile="default")
    assert f"{torch.tensor(1.25, device='xla'):.1f}|{torch.tensor(7, device='xla'):03d}" == "1.2|007"
    assert f"{numbers(1.0)}" == "tensor([1.], device='xla:0')"


def test_it_is_a_tensor() -> None:
    parameter = nn.Parameter(numbers(1.0))
    assert isinstance(numbers(1.0), Tensor) and isinstance(parameter, nn.Parameter) and not isinstance(numbers(1.0), nn.Parameter)
    assert isinstance(numbers(1.0) + 1, XLATensor) and isinstance(parameter * 2, XLATensor)
    module = nn.Module()
    module.weight = parameter
    module.register_buffer("state", numbers(2.0))
    assert [name for name, _ in module.named_parameters()] == ["weight"]
    assert {tensor.device.type for tensor in module.state_dict().values()} == {"xla"}


PYTHON: dict[str, Callable[[str], Any]] = {
    "bool": lambda d: bool(torch.tensor(2.0, device=d)),
    "bool_of_many": lambda d: bool(torch.ones(2, device=d)),
    "int": lambda d: int(torch.tensor(7.9, device=d)),
    "float": lambda d: float(torch.tensor(7, device=d)),
    "complex": lambda d: complex(torch.tensor(1 + 2j, device=d)),
    "index": lambda d: "abc"[torch.tensor(1, device=d)],
    "index_of_float": lambda d: "abc"[torch.tensor(1.0, device=d)],
    "item": lambda d: torch.tensor([[5]], device=d).item(),
    "item_of_many": lambda d: torch.ones(2, device=d).item(),
    "tolist": lambda d: torch.tensor([[1, 2], [3, 4]], device=d).tolist(),
    "tolist_of_scalar": lambda d: torch.tensor(4.5, device=d).tolist(),
    "len": lambda d: len(torch.ones(3, 2, device=d)),
    "len_of_scalar": lambda d: len(torch.tensor(1, device=d)),
    "iterate": lambda d: [part.tolist() for part in torch.ones(2, 2, device=d)],
    "iterate_scalar": lambda d: list(torch.tensor(1.0, device=d)),
    "contains": lambda d: (1 in torch.ones(2, device=d), 3 in torch.ones(2, device=d)),
    "numbers_first": lambda d: [
        (f(torch.tensor([1.0, 2.0], device=d))).tolist() for f in (lambda x: 2 - x, lambda x: 2**x, lambda x: 1 / x)
    ],
    "numpy_scalar": lambda d: (np.float32(2) * torch.ones(2, device=d)).tolist(),
    "metadata": lambda d: [
        (x.dim(), x.shape, x.size(-1), x.numel(), x.dtype, x.layout, x.is_floating_point(), x.is_complex(), x.element_size(), x.nbytes)
        for x in [torch.zeros(2, 3, device=d, dtype=torch.float16)]
    ],
    "version": lambda d: [(x.add_(1), x[0].zero_(), x._version) for x in [torch.zeros(2, device=d)]][0][2],
    "hash": lambda d: {x: 1 for x in [torch.zeros(2, device=d)]} and None,
    "unpack": lambda d: [float(part) for part in (lambda a, b: (b, a))(*torch.tensor([1.0, 2.0], device=d))],
}


@pytest.mark.parametrize("use", list(PYTHON.values()), ids=list(PYTHON))
def test_python_protocols_are_those_of_the_cpu(use: Callable[[str], Any]) -> None:
    try:
        expected = use("cpu")
    except Exception as error:
        with pytest.raises(type(error)) as caught:
            use("xla")
        assert str(caught.value) == str(error)
    else:
        assert use("xla") == expected


def test_shapes_and_types_are_known_without_running(counts: Counts) -> None:
    left, right = torch.ones(3, 1, device="xla", requires_grad=True), torch.ones(4, dtype=torch.float64, device="xla")
    total = (left + right).t()[1:].sum(0)
    assert (total.shape, total.dtype, total.device.type, total.requires_grad) == ((3,), torch.float64, "xla", True)
    assert total.stride() == (1,) and total.is_contiguous()
    with pytest.raises(RuntimeError, match="The size of tensor a"):
        left + torch.ones(2, 2, device="xla")
    assert (counts.UncachedCompile, counts.CachedCompile, counts.ExecuteComputation) == (0, 0, 0)


MIXED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "first": lambda xla, cpu: cpu + xla,
    "second": lambda xla, cpu: xla + cpu,
    "in_place": lambda xla, cpu: xla.add_(cpu),
    "in_place_on_cpu": lambda xla, cpu: cpu.add_(xla),
    "matmul": lambda xla, cpu: xla @ cpu.t(),
    "linear": lambda xla, cpu: nn.functional.linear(xla, cpu),
    "list": lambda xla, cpu: torch.cat([xla, cpu]),
    "list_other": lambda xla, cpu: torch.stack([cpu, xla]),
    "where": lambda xla, cpu: torch.where(cpu > 0, xla, xla),
    "out": lambda xla, cpu: torch.add(xla, 1, out=cpu),
    "out_of_cpu": lambda xla, cpu: torch.add(cpu, 1, out=xla),
    "foreach": lambda xla, cpu: torch._foreach_add([xla], [cpu]),
}


@pytest.mark.parametrize("mix", list(MIXED.values()), ids=list(MIXED))
def test_a_cpu_operand_is_refused_when_recorded(mix: Callable[[Tensor, Tensor], Any], counts: Counts) -> None:
    xla, cpu = torch.ones(2, 2, device="xla"), torch.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"Input tensor is not an XLA tensor: torch\.(Float|Long|Bool)Tensor"):
        mix(xla, cpu)
    assert counts.ExecuteComputation == 0


def test_numbers_and_0d_cpu_tensors_are_welcome() -> None:
    xla = numbers(1.0, 2.0)
    assert (xla + 1).tolist() == (1 + xla).tolist() == [2, 3]
    assert (torch.tensor(2.0) * xla).tolist() == (xla * torch.tensor(2)).tolist() == [2, 4]
    assert xla.clone().add_(torch.tensor(1.0)).tolist() == [2, 3]
    assert (torch.tensor(2.0, dtype=torch.float64) * xla).dtype is torch.float32
    assert torch.where(xla > 1, torch.tensor(7.0), xla).tolist() == [1, 7]


def test_two_xla_devices(run: Run) -> None:
    output = run(
        """
        import torch, torch_xla
        a, b = torch.ones(2, device="xla:0"), torch.ones(2, device="xla:1")
        for mix in (lambda: a + b, lambda: b.add_(a), lambda: torch.cat([a, b]), lambda: torch.add(a, 1, out=b), lambda: a[b.long()]):
            try:
                mix()
            except RuntimeError as error:
                print("xla:0" in str(error) and "xla:1" in str(error))
        """,
        CPU_NUM_DEVICES="2",
    )
    assert output.split() == ["True"] * 5


def test_no_memory_to_touch() -> None:
    turned = torch.zeros(2, 3, device="xla").t()
    with pytest.raises(TypeError, match=r"\.cpu\(\)"):
        turned.numpy()
    with pytest.raises(TypeError):
        np.asarray(turned)
    assert turned.detach().numpy(force=True).shape == (3, 2)


def test_types_have_names_of_their_own() -> None:
    tensor = numbers(1.5, 2.5)
    assert tensor.type() == "torch.xla.FloatTensor"
    assert tensor.type(torch.int64).tolist() == [1, 2]
    assert tensor.long().type() == "torch.xla.LongTensor"


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_copies_share_what_their_origins_share(device: str) -> None:
    base = torch.arange(6.0).to(device)
    square, row, apart = copy.deepcopy([base.view(2, 3), base[1:4], torch.zeros(2).to(device)])
    square.add_(10)
    assert row.tolist() == [11, 12, 13] and base.tolist() == [0, 1, 2, 3, 4, 5] and apart.tolist() == [0, 0]
    assert row.storage_offset() == 1 and row.untyped_storage().data_ptr() == square.untyped_storage().data_ptr()
    assert copy.deepcopy(torch.zeros(0, 3, dtype=torch.int32).to(device)).dtype is torch.int32
    alias = copy.copy(base)
    alias.fill_(7)
    assert base.tolist() == [7] * 6


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_copies_of_storages_go_with_their_tensors(device: str) -> None:
    base = torch.arange(4.0).to(device)
    copies = copy.deepcopy([base, base.storage(), base.untyped_storage()])
    copies[0].fill_(1)
    assert copies[1].tolist() == [1, 1, 1, 1] and list(copies[2])[2:4] == [128, 63] and base.tolist() == [0, 1, 2, 3]


def test_copies_are_deep() -> None:
    origin = numbers(1.0, 2.0)
    origin.extra = ["kept"]  # type: ignore[attr-defined]
    for make in (copy.deepcopy, torch.clone):
        twin: Any = make(origin)
        twin.zero_()
        assert origin.tolist() == [1, 2] and twin.tolist() == [0, 0]
    assert copy.deepcopy(origin).extra == ["kept"] and copy.deepcopy(origin).extra is not origin.extra


def test_a_copied_module_is_independent_and_keeps_its_ties() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to("xla")
    module[1].weight = module[0].weight
    (module(torch.ones(1, 2, device="xla"))).sum().backward()
    twin = copy.deepcopy(module)
    assert twin[1].weight is twin[0].weight and isinstance(twin[0].weight, nn.Parameter) and twin[0].weight.requires_grad
    assert twin[0].weight.grad is None and module[0].weight.grad is not None  # as on the CPU: parameters are copied without
    with torch.no_grad():
        twin[0].weight.zero_()
    assert module[0].weight.abs().sum().item() > 0


def test_a_copy_of_a_view_is_that_view_alone() -> None:
    base = torch.arange(4.0, device="xla").view(2, 2)
    twin = copy.deepcopy(base.t()[0])
    twin.fill_(9)
    assert base.tolist() == [[0, 1], [2, 3]] and twin.tolist() == [9, 9]


def test_only_leaves_can_be_deep_copied() -> None:
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(numbers(1.0, requires_grad=True) * 2)


def test_data_can_be_read_and_replaced() -> None:
    leaf = numbers(1.0, 2.0, requires_grad=True)
    leaf.data.mul_(3)
    assert leaf.tolist() == [3, 6] and not leaf.data.requires_grad
    other = numbers(5.0, 6.0, 7.0)
    leaf.data = other
    other.add_(1)
    assert leaf.tolist() == [6, 7, 8] and leaf.requires_grad and leaf.shape == (3,)
    (leaf * 2).sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="xla"):
        leaf.data = torch.ones(3)
    view = torch.zeros(2, 2, device="xla")
    leaf.data = view[1]
    leaf.data.add_(4)
    assert view.tolist() == [[0, 0], [4, 4]]


def test_data_can_be_a_lazy_conjugate_of_another_dtype() -> None:
    tensor, twin = numbers(1.0, 2.0), torch.tensor([1.0, 2.0])
    numbers_of_two = torch.tensor([1 + 2j, 3j, 1])
    for make in (lambda x: x.conj(), lambda x: x.real.clone(), lambda x: x.conj().imag, lambda x: x.conj()[1:]):
        tensor.data, twin.data = make(numbers_of_two.to("xla")), make(numbers_of_two)
        assert (tensor.is_conj(), tensor.is_neg()) == (twin.is_conj(), twin.is_neg())
        assert tensor.tolist() == twin.tolist() and (tensor * 2).tolist() == (twin * 2).tolist()


def saved(thing: Any) -> io.BytesIO:
    """A file with `thing`."""
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_file_remembers_the_device(weights_only: bool) -> None:
    leaf = numbers(1.0, 2.0, requires_grad=True)
    parameter = nn.Parameter(numbers(3.0))
    halves = torch.ones(2, dtype=torch.bfloat16, device="xla").t()[:1]
    thing = {"leaf": leaf, "parameter": parameter, "halves": halves, "computed": (leaf * 2).detach(), "cpu": torch.zeros(1)}
    for place, device in ((None, "xla:0"), ("cpu", "cpu"), (torch.device("xla:0"), "xla:0"), ({"xla:0": "cpu"}, "cpu")):
        loaded = torch.load(saved(thing), map_location=place, weights_only=weights_only)
        assert {str(tensor.device) for name, tensor in loaded.items() if name != "cpu"} == {device}
        assert loaded["leaf"].requires_grad and not loaded["computed"].requires_grad
        assert isinstance(loaded["parameter"], nn.Parameter) and loaded["parameter"].requires_grad
        assert loaded["leaf"].tolist() == [1, 2] and loaded["halves"].tolist() == [1] and loaded["halves"].dtype is torch.bfloat16


def test_a_device_that_is_not_there_fails(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tensor.pt"
    run(f"import torch, torch_xla\ntorch.save(torch.ones(2, device='xla:1'), {str(file)!r})", CPU_NUM_DEVICES="2")
    with pytest.raises(RuntimeError, match="xla:1 does not exist"):
        torch.load(file)
    assert torch.load(file, map_location="xla:0").tolist() == [1, 1]


def test_stock_torch_loads_the_file_on_the_cpu(tmp_path: Path) -> None:
    file = tmp_path / "state.pt"
    torch.save(nn.Linear(2, 1).to("xla").state_dict(), file)
    code = f"import torch; print(sorted(torch.load({str(file)!r}, map_location='cpu', weights_only=True)))"
    done = forked_python.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['bias', 'weight']"


def test_pickles_keep_attributes_and_parameters() -> None:
    tensor, parameter = numbers(1.0), nn.Parameter(numbers(2.0), requires_grad=False)
    tensor.note, parameter.note = "mine", "yours"  # type: ignore[attr-defined]
    for origin in (tensor, parameter):
        twin = pickle.loads(pickle.dumps(origin))
        assert type(twin) is type(origin) and twin.note == origin.note  # type: ignore[attr-defined]
        assert isinstance(twin, nn.Parameter) == isinstance(origin, nn.Parameter)
        assert twin.requires_grad == origin.requires_grad and twin.tolist() == origin.tolist()


def test_ids_are_equal_for_the_same_storage() -> None:
    identity = torch_xla._XLAC._xla_get_tensor_id
    tensor, other = numbers(1.0, 2.0), numbers(1.0, 2.0)
    assert identity(tensor) == identity(tensor) == identity(tensor.detach()) == identity(tensor[1:])
    assert identity(tensor) != identity(other) and identity(tensor) != identity(tensor.clone())
    assert torch.device(torch_xla._XLAC._xla_get_default_device()).type == "xla"


def test_weights_tied_after_the_move_stay_tied() -> None:
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).to("xla")
    module[1].weight = module[0].weight
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(torch.ones(1, 2, device="xla")).sum().backward()
    optimizer.step()
    assert len(list(module.parameters())) == 1
    torch.testing.assert_close(module[0].weight.cpu(), module[1].weight.cpu(), rtol=0, atol=0)


def test_autocast_computes_products_in_bfloat16() -> None:
    layer = nn.Linear(4, 4).to("xla")
    with torch.autocast("xla", dtype=torch.bfloat16):
        product = layer(torch.ones(2, 4, device="xla"))
        assert product.dtype is torch.bfloat16
        assert product.float().softmax(0).dtype is torch.float32
    assert layer.weight.dtype is torch.float32


def test_capturable_optimizers_take_xla_parameters() -> None:
    parameter = nn.Parameter(numbers(1.0, 2.0))
    optimizer = torch.optim.Adam([parameter], lr=0.1, capturable=True)
    parameter.sum().backward()
    optimizer.step()
    torch.testing.assert_close(parameter.detach().cpu(), torch.tensor([0.9, 1.9]))


def test_moves() -> None:
    tensor = numbers(1.0, 2.0)
    assert tensor.to("xla") is tensor and tensor.to("xla:0") is tensor and tensor.to(torch.float32) is tensor
    assert tensor.to("xla", copy=True) is not tensor
    assert tensor.to("cpu", torch.int64).tolist() == [1, 2] and tensor.to("cpu", torch.int64).dtype is torch.int64
    assert tensor.to(torch.zeros(1, dtype=torch.float64)).device.type == "cpu"
    assert torch.zeros(1).to(tensor).device.type == "xla"
    assert tensor.to("meta").device.type == "meta"
    with pytest.raises(NotImplementedError, match="meta tensor"):
        torch.ones(1, device="meta").to("xla")
    source = torch.ones(2)
    moved = source.to("xla", non_blocking=True)
    source.zero_()
    assert moved.tolist() == [1, 1]
    expanded = torch.arange(2.0).expand(3, 2).t().to("xla")
    assert expanded.tolist() == [[0, 0, 0], [1, 1, 1]]


def test_copy_between_devices_and_dtypes() -> None:
    xla, cpu = torch.zeros(2, 2, device="xla"), torch.arange(2)
    xla.copy_(cpu)
    assert xla.tolist() == [[0, 1], [0, 1]]
    target = torch.zeros(2, 2, dtype=torch.int8)
    target.copy_(xla + 0.5)
    assert target.tolist() == [[0, 1], [0, 1]]
    xla[:, 1] = torch.tensor(7)
    xla[0].copy_(torch.tensor([3.5, 4.5], dtype=torch.float64))
    assert xla.tolist() == [[3.5, 4.5], [0, 7]]
    with pytest.raises(RuntimeError):
        xla.copy_(torch.ones(3))


def test_what_a_copy_would_make_of_its_target() -> None:
    here, there = torch.zeros(2, 3), torch.arange(3)
    for target in (here, here.to("xla")):
        for source in (there, there.to("xla"), torch.tensor(7.0)):
            made = torch.ops.aten.copy(target, source)
            assert (made.device.type, made.dtype) == (target.device.type, target.dtype)
            assert made.tolist() == torch.ops.aten.copy(here, source.cpu()).tolist() and target.count_nonzero().item() == 0


def test_tensors_over_the_storage_of_another() -> None:
    found = []
    for device in ("cpu", "xla"):
        base = torch.arange(6.0).reshape(2, 3).to(device)
        flat = torch.empty(0, device=device).set_(base.t().untyped_storage())
        part = torch.empty(0, device=device).set_(base.untyped_storage(), 1, (2, 2), (3, 1))
        part.mul_(10)
        flat[0] = -1
        found.append([each.tolist() for each in (base, flat, part)])
    assert found[0] == found[1]


def test_resize_as() -> None:
    assert torch.zeros(2, device="xla").resize_as_(torch.zeros(3, 2, device="xla")).shape == (3, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_one_dtype(dtype: torch.dtype, training: bool) -> None:
    """Statistics and weights in the dtype of the input too; nothing is saved when not training."""
    found = []
    for device in ("xla", "cpu"):
        x, weight, bias = (torch.linspace(-1, 2, size).to(device, dtype) for size in (24, 3, 3))
        mean, variance = torch.zeros(3, device=device, dtype=dtype), torch.ones(3, device=device, dtype=dtype)
        out, *saved = torch.native_batch_norm(x.view(4, 3, 2), weight, bias, mean, variance, training, 0.1, 1e-5)
        found.append([each.cpu().float() for each in (out, mean, variance)])
        assert all(each.numel() == (3 if training else 0) for each in saved)
    torch.testing.assert_close(*found, rtol=2e-2, atol=2e-2)


def test_a_storage_of_size_0_holds_no_data() -> None:
    """Torch's `fully_shard` frees parameters so, and fills them again."""
    x = torch.ones(1024, 256, device="xla")
    part = x[0]
    torch_xla.sync()
    before = torch.xla.memory_allocated()  # type: ignore[attr-defined]
    x.untyped_storage().resize_(0)
    assert before - torch.xla.memory_allocated() > 0.99 * x.nbytes  # type: ignore[attr-defined]
    x.untyped_storage().resize_(x.nbytes)
    x.copy_(torch.full((1024, 256), 2.0))
    assert part.tolist() == [2.0] * 256


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.tensor([x[0], x[1]], device=x.device),
        lambda x: torch.tensor([[x[:1], 1.5], [x[1], 2]]),
        lambda x: torch.as_tensor([x[0]], device=x.device),
        lambda x: x.new_tensor([x[1], 3]),
        lambda x: torch.cartesian_prod(x, x).new_tensor(list(x)),
    ],
    ids=lambda make: f"line {make.__code__.co_firstlineno}",
)
def test_tensors_of_elements(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """torch reads the numbers below the tensors' dispatch."""
    x = torch.tensor([1, 2])
    expected, made = make(x), make(x.to("xla"))
    assert made.dtype == expected.dtype and made.cpu().equal(expected)


@pytest.mark.parametrize("plain", [False, True])
def test_functions_of_elements_are_for_the_cpu(plain: bool) -> None:
    x = torch.ones(2, device="xla")
    x = nn.Parameter(x, requires_grad=False) if plain else x
    calls = [lambda: x.apply_(abs), lambda: x.map_(x, max), lambda: x.map2_(x, x, max)]
    for call, name in zip(calls, ("apply_", "map_", "map2_"), strict=True):
        with pytest.raises(TypeError, match=f"{name} is only implemented on CPU tensors"):
            call()

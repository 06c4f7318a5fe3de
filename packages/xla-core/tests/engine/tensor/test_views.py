"""Views: what they show, writes through them to base and siblings, views of views, syncs in between, and other devices."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch._prims as prims
import torch._refs as refs

import torch_xla

Tensor = torch.Tensor
Do = Callable[[Tensor], Tensor]
Run = Callable[..., str]

REAL: dict[str, Do] = {
    "view": lambda x: x.view(4, 6),
    "view_minus_one": lambda x: x.view(-1),
    "reshape": lambda x: x.reshape(3, 8),
    "reshape_of_columns": lambda x: x.transpose(0, 1).reshape(4, 2, 3)[1:3],
    "t": lambda x: x.view(4, 6).t(),
    "transpose": lambda x: x.transpose(0, 2),
    "transpose_negative": lambda x: x.transpose(-1, -2),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "movedim": lambda x: x.movedim(0, -1),
    "permute": lambda x: x.permute(2, 0, 1),
    "mT": lambda x: x.mT,
    "select": lambda x: x.select(1, 2),
    "select_negative": lambda x: x[..., -1],
    "slice": lambda x: x[:, 1:3],
    "slice_step": lambda x: x[..., ::2],
    "slice_offset_step": lambda x: x[:, 1::2, 1::3],
    "slice_negative": lambda x: x[:, -2:],
    "slice_past_the_end": lambda x: x[:, 1:99],
    "slice_empty": lambda x: x[:, 2:1],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "none": lambda x: x[None, :, None],
    "mixed_index": lambda x: x[1, None, ::2, 1:],
    "expand": lambda x: x[:, :1].expand(-1, 1, -1),
    "expand_as": lambda x: x.expand(1, 2, 3, 4),
    "squeeze": lambda x: x[:, :1].squeeze(),
    "squeeze_dim": lambda x: x[:, :1].squeeze(1),
    "squeeze_dims": lambda x: x[:1, :1].squeeze((0, 1)),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "diagonal_above": lambda x: x.diagonal(1, 0, 2),
    "diagonal_below": lambda x: x.diagonal(-1, 1, 2),
    "diagonal_outside": lambda x: x.diagonal(9, 1, 2),
    "unfold": lambda x: x.unfold(2, 2, 2),
    "unfold_gap": lambda x: x.unfold(2, 1, 3),
    "as_strided": lambda x: x.as_strided((3, 2), (2, 9), 1),
    "as_strided_of_slice": lambda x: x[1].as_strided((2, 2), (4, 1)),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "ravel": lambda x: x.ravel(),
    "view_as": lambda x: x.view_as(x),
    "contiguous": lambda x: x.contiguous(),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "alias": lambda x: torch.ops.aten.alias(x),
    "split": lambda x: x.split(2, 2)[1],
    "split_sizes": lambda x: x.split([1, 3], -1)[1],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "tensor_split": lambda x: x.tensor_split(3, 2)[0],
    "hsplit": lambda x: x.hsplit(3)[2],
    "unbind": lambda x: x.unbind(1)[2],
    "iterate": lambda x: list(x)[1],
    "real_of_real": lambda x: x.real,
    "int_bits": lambda x: x.view(torch.int32),
}
COMPLEX: dict[str, Do] = {
    "view_as_real": torch.view_as_real,
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "conj": lambda x: x.conj(),
    "conj_imag": lambda x: x.conj().imag,
    "adjoint": lambda x: x.view(4, 6).mH,
    "round_trip": lambda x: torch.view_as_complex(torch.view_as_real(x)),
    "as_strided_real": lambda x: torch.view_as_real(x).as_strided((3,), (5,), 2),
    "float_bits": lambda x: x.view(torch.float32),
}
SECOND: dict[str, Do] = {
    "first": lambda x: x[0] if x.dim() and len(x) else x,
    "reversed": lambda x: x.permute(*reversed(range(x.dim()))),
    "every_other": lambda x: x[..., ::2] if x.dim() else x,
    "wide": lambda x: x.unsqueeze(0),
    "flat": lambda x: x.reshape(-1),
    "squeezed": lambda x: x.squeeze(),
}


def base(dtype: torch.dtype = torch.float32) -> Tensor:
    """24 different numbers."""
    numbers = torch.arange(24.0).reshape(2, 3, 4)
    return torch.complex(numbers, -numbers - 0.5) if dtype.is_complex else numbers.to(dtype)


def agree(cpu: Any, xla: Any) -> None:
    """Same values, dtypes and shapes on the right devices, for tensors or for sequences of them."""
    torch_xla.sync()  # one program computes all of them
    for theirs, mine in zip(cpu, xla, strict=True) if isinstance(cpu, (list, tuple)) else [(cpu, xla)]:
        assert mine.device.type == "xla"
        torch.testing.assert_close(mine.cpu(), theirs.resolve_conj().resolve_neg(), rtol=0, atol=0, equal_nan=True)


CASES = [pytest.param(torch.float32, do, id=name) for name, do in REAL.items()]
CASES += [pytest.param(torch.complex64, do, id=name) for name, do in COMPLEX.items()]
WIDTHS = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bfloat16)
each_view = pytest.mark.parametrize(("dtype", "do"), CASES)


@each_view
def test_a_view_shows_its_base_now_and_later(dtype: torch.dtype, do: Do) -> None:
    cpu = base(dtype)
    xla = cpu.to("xla")
    seen = []
    for x in (cpu, xla):
        part = do(x)
        before = part.clone()
        x[0, 1].fill_(7)
        between = part.clone()
        x[:, ::2].neg_()
        x.mul_(3)
        seen.append((before, between, part, do(x)))
    agree(*seen)


@each_view
@pytest.mark.parametrize("synced", [False, True], ids=["pending", "synced"])
def test_a_write_through_a_view_is_seen_by_base_and_siblings(dtype: torch.dtype, do: Do, synced: bool) -> None:
    cpu = base(dtype)
    xla = cpu.to("xla")
    seen = []
    for x in (cpu, xla):
        sibling, part = x[1], do(x)
        if synced and x is xla:
            torch_xla.sync()
        part.mul_(2).add_(1)
        seen.append((x, sibling, part, do(x)))
    agree(*seen)


@each_view
def test_views_of_views(dtype: torch.dtype, do: Do) -> None:
    cpu = base(dtype)
    xla = cpu.to("xla")
    seen = []
    for start in (cpu, xla):
        made = []
        for second in SECOND.values():
            x = start.clone()
            first = do(x)
            inner = second(first)
            inner.add_(inner)
            first.mul_(3)
            made.append((x, first, inner))
        torch_xla.sync()
        for _, _, inner in made:
            inner.sub_(1)
        torch_xla.sync()
        seen.append([tensor for three in made for tensor in three])
    agree(*seen)


@pytest.mark.parametrize(("first", "second"), list(product(WIDTHS, repeat=2)), ids=str)
def test_bits_as_another_dtype(first: torch.dtype, second: torch.dtype) -> None:
    cpu = base().to(first).view(3, 8)
    xla = cpu.to("xla")
    seen = []
    for x in (cpu, xla):
        part = x.view(second)[1:]
        shown = part.clone()
        part.copy_(x.view(second)[:2].clone())
        seen.append((shown, x))
    agree(*seen)


def test_bits_written_as_one_dtype_and_read_as_another_in_one_program() -> None:
    seen = []
    for device in ("cpu", "xla"):
        x = torch.arange(24.0, dtype=torch.float64, device=device).view(6, 4)
        x.view(torch.uint8)[:, ::2].fill_(64)
        x.view(torch.int32)[2] = 1 << 24
        seen.append((x.view(torch.int32).clone(), x.view(torch.complex128).clone(), x))
    agree(*seen)


def test_bits_of_bools() -> None:
    cpu = torch.tensor([[True, False, True, True]])
    xla = cpu.to("xla")
    for x in (cpu, xla):
        x.view(torch.uint8)[0, 1:3] = torch.tensor([1, 0], dtype=torch.uint8, device=x.device)
    agree((cpu, cpu.view(torch.int32)), (xla, xla.view(torch.int32)))


def test_slice_assignment_in_every_form() -> None:
    cpu = base()
    xla = cpu.to("xla")
    for x in (cpu, xla):
        x[0] = 1
        x[:, 1] = torch.arange(4.0, device=x.device)
        x[..., 2] = x[..., 3]
        x[1, ::2, 1:] += 5
        x[-1][-1][-1] = 9
        x[x > 20] = 0
        x[torch.tensor([0, 1], device=x.device), torch.tensor([2, 0], device=x.device)] = 4
        x[:, [0, 2], 1] *= 2
        x[None, 0, ..., None][0, 1] = -1
        x[1:0] = 3
    agree(cpu, xla)


def test_the_metadata_of_a_tensor_changes_in_place() -> None:
    cpu = base().view(4, 6)
    xla = cpu.to("xla")
    seen = []
    for x in (cpu, xla):
        alias = x.view(-1)
        x.t_()
        shape = x.shape
        x.unsqueeze_(0).squeeze_(0).transpose_(0, 1).swapaxes_(0, 1)
        x[1] += 1
        assert shape == (6, 4)
        seen.append((alias, x))
    agree(*seen)


def test_views_share_storage_as_on_the_cpu() -> None:
    cpu = base()
    xla: Any = cpu.to("xla")
    for do in (*REAL.values(), lambda x: x.clone(), lambda x: x.transpose(0, 1).reshape(-1), lambda x: x.transpose(0, 1).contiguous()):
        same = do(cpu).untyped_storage()._cdata == cpu.untyped_storage()._cdata
        part: Any = do(xla)
        assert (part._storage is xla._storage) == same


def test_what_strides_forbid_is_refused_in_the_same_words() -> None:
    for view in (lambda x: x.transpose(0, 1).view(-1), lambda x: x.view(5, 5), lambda x: x[..., ::2].view(torch.int16)):
        errors = []
        for tensor in (base(), base().to("xla")):
            with pytest.raises(RuntimeError) as error:
                view(tensor)
            errors.append(str(error.value))
        assert errors[0] == errors[1]


def test_writes_where_elements_repeat_are_refused() -> None:
    wide = torch.zeros(1).to("xla").expand(3)
    with pytest.raises(RuntimeError, match="single memory location"):
        wide.add_(1)
    with pytest.raises(RuntimeError, match="single memory location"):
        wide[0:2].copy_(torch.ones(2).to("xla"))
    assert wide.tolist() == [0, 0, 0]
    assert wide.fill_(4).tolist() == [4, 4, 4]


PARTS: dict[str, Do] = {
    "as_strided": lambda x: x.view(-1).as_strided((2, 3), (0, 1), 1)[0],
    "as_strided_bits": lambda x: x.view(-1).view(torch.int16).as_strided((3, 2), (1, 1), 0)[1],
    "expand": lambda x: x.view(-1)[:1].expand(4)[1:2],
    "expand_rows": lambda x: x[0, :1].expand(5, -1)[2],
    "unfold": lambda x: x.view(-1).unfold(0, 4, 1)[2],
    "unfold_column": lambda x: x.view(-1).unfold(0, 4, 2)[:, 1],
    "window_of_windows": lambda x: x.view(-1).unfold(0, 6, 2).unfold(1, 3, 1)[1, 2],
}


@pytest.mark.parametrize("part", list(PARTS.values()), ids=list(PARTS))
def test_writes_to_a_part_of_overlapping_elements_reach_the_base(part: Do) -> None:
    pairs = [base(), base().to("xla")]
    for tensor in pairs:
        shown = part(tensor)
        shown.copy_(torch.arange(shown.numel(), dtype=shown.dtype, device=shown.device).view(shown.shape) + 50)
        part(tensor).mul_(2)
    agree(*pairs)


OVERLAPPING: dict[str, Do] = {
    "unfold": lambda x: x.unfold(0, 2, 1),
    "unfold_step": lambda x: x.unfold(0, 3, 2),
    "as_strided": lambda x: x.as_strided((4, 3), (1, 1), 1),
    "expand": lambda x: x[:4].expand(3, 4),
    "expand_columns": lambda x: x[:4, None].expand(4, 3),
}
WRITES: dict[str, Callable[[Tensor], object]] = {
    "index": lambda v: v.__setitem__(torch.tensor([1], device=v.device), 2.0),
    "two_indices": lambda v: v.__setitem__((torch.tensor([0, 2], device=v.device), torch.tensor([1, 0], device=v.device)), -7.0),
    "mask": lambda v: v.__setitem__(v > 2, -1.0),
    "negative_zero": lambda v: v.__setitem__(torch.tensor([1], device=v.device), -0.0),
    "not_a_number": lambda v: v.__setitem__(torch.tensor([2], device=v.device), float("nan")),
    "index_fill_": lambda v: v.index_fill_(0, torch.tensor([1], device=v.device), 3.0),
    "index_copy_": lambda v: v.index_copy_(0, torch.tensor([1], device=v.device), torch.full((1, v.shape[1]), 4.0, device=v.device)),
    "index_add_": lambda v: v.index_add_(0, torch.tensor([1], device=v.device), torch.full((1, v.shape[1]), 4.0, device=v.device)),
    "scatter_": lambda v: v.scatter_(0, torch.ones((1, v.shape[1]), dtype=torch.long, device=v.device), 5.0),
    "masked_fill_": lambda v: v.masked_fill_(v > 2, 6.0),
    "put_": lambda v: v.put_(torch.tensor([1], device=v.device), torch.tensor(5.0, device=v.device)),
    "fill_": lambda v: v.fill_(1.0),
    "copy_": lambda v: v.copy_(torch.tensor(3.0, device=v.device)),
}


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")
@pytest.mark.parametrize("write", list(WRITES.values()), ids=list(WRITES))
@pytest.mark.parametrize("view", list(OVERLAPPING.values()), ids=list(OVERLAPPING))
def test_writes_to_some_of_overlapping_elements_reach_the_base_or_are_refused(view: Do, write: Callable[[Tensor], object]) -> None:
    """The others, which show the same memory, do not bring back what was there."""
    refused = []
    pairs = [torch.arange(8.0), torch.arange(8.0).to("xla")]
    for tensor in pairs:
        try:
            write(view(tensor))
        except RuntimeError as error:
            refused.append(str(error))
    assert len(refused) in (0, 2) and len(set(refused)) < 2
    torch.testing.assert_close(pairs[1].cpu(), pairs[0], equal_nan=True, rtol=0, atol=0)
    assert torch.equal(pairs[1].cpu().signbit(), pairs[0].signbit())


def test_the_diagonal_of_a_view_is_filled_where_the_view_begins() -> None:
    """Composites of torch ask the tensor itself for its offset."""
    for fill in (lambda x: x[2:].fill_diagonal_(1), lambda x: x[1:, 1:].t().fill_diagonal_(2), lambda x: x[1:].fill_diagonal_(3, True)):
        pairs = [torch.zeros(7, 3), torch.zeros(7, 3).to("xla")]
        for tensor in pairs:
            fill(tensor)
        agree(*pairs)


def test_crossing_a_device_boundary_copies() -> None:
    cpu = base()
    xla = cpu[1:].to("xla")
    assert xla.shape == (1, 3, 4)
    xla.zero_()
    assert cpu[1, 0, 0].item() == 12
    cpu.fill_(5)
    back = xla[0, 1:].cpu()
    assert back.shape == (2, 4)
    back.fill_(8)
    xla.add_(1)
    assert xla.unique().tolist() == [1] and back.unique().tolist() == [8]


def test_between_xla_devices(run: Run) -> None:
    output = run(
        """
        import torch, torch_xla
        base = torch.arange(6.0).view(2, 3).to("xla:0")
        part = base[1]
        moved = part.to("xla:1")
        part.zero_(); moved.add_(10); base[0, 0] = 7
        print(moved.device, tuple(moved.shape), moved.tolist(), base.tolist())
        moved[1:].copy_(base[0, 1:])
        print(moved.tolist(), base.device)
        """,
        CPU_NUM_DEVICES="2",
    )
    assert output.splitlines() == [
        "xla:1 (3,) [13.0, 14.0, 15.0] [[7.0, 1.0, 2.0], [0.0, 0.0, 0.0]]",
        "[13.0, 1.0, 2.0] xla:0",
    ]


def test_views_under_autograd() -> None:
    gradients = []
    for device in ("cpu", "xla"):
        leaf = base().to(device).requires_grad_()
        work = leaf * 1
        work[:, 1].mul_(3)
        work.transpose(0, 1)[2].add_(leaf[:, 0] ** 2)
        work.view(-1)[::5].zero_()
        work.diagonal(0, 1, 2).mul_(2)
        (work * work.detach()).sum().backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad.cpu())
    torch.testing.assert_close(*gradients)


def test_a_view_of_a_leaf_cannot_be_written_to() -> None:
    leaf = base().to("xla").requires_grad_()
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad is being used in an in-place operation"):
        leaf[0].add_(1)
    with torch.no_grad():
        leaf[0].zero_()
    assert leaf[0].sum().item() == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda x: prims.broadcast_in_dim(x, (4, 2, 3), (1, 2)),
        lambda x: prims.split_dim(x, 1, 3),
        lambda x: prims.transpose(x, (1, 0)),
        lambda x: prims.collapse_view(x, 0, 1),
        lambda x: prims.squeeze(x[:1], [0]),
        lambda x: prims.as_strided(x, (2, 2), (1, 2), 1),
        lambda x: refs.t(x),
    ],
    ids=["broadcast_in_dim", "split_dim", "transpose", "collapse_view", "squeeze", "as_strided", "refs.t"],
)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_primitive_views(view: Do) -> None:
    """torch's own primitives, of which its references are made."""
    plain, x = torch.arange(6.0).view(2, 3), torch.arange(6.0, device="xla").view(2, 3)
    expected, shown = view(plain), view(x)
    assert shown.stride() == expected.stride() and shown.cpu().equal(expected)
    x.add_(1)
    assert shown.cpu().equal(expected + 1)

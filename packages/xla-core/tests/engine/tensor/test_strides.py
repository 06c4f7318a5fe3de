"""Tensors show the strides that the CPU gives them, whatever was done to them; their elements do not depend on it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

Step = Callable[[Tensor], Tensor]
CHANNELS_LAST = torch.channels_last


STEPS: dict[str, Step] = {
    "transpose": lambda x: x.transpose(0, -1),
    "permute": lambda x: x.permute(*range(1, x.dim()), 0),
    "slice": lambda x: x[1:] if x.dim() and x.shape[0] > 1 else x,
    "step": lambda x: x[..., ::2] if x.dim() else x,
    "select": lambda x: x[0] if x.dim() > 1 else x,
    "unsqueeze": lambda x: x.unsqueeze(1) if x.dim() < 5 else x,
    "expand": lambda x: x.unsqueeze(0).expand(2, *x.shape) if x.dim() < 5 else x,
    "sum": lambda x: x.sum(0) if x.dim() > 1 else x,
    "sin": torch.sin,
    "add itself": lambda x: x + x,
    "add a row": lambda x: x + torch.arange(float(x.shape[-1])).to(x.device) if x.dim() else x,
    "compare": lambda x: (x > 1).float(),
    "double": lambda x: x.double().float(),
    "clone": torch.clone,
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x.contiguous(memory_format=CHANNELS_LAST) if x.dim() == 4 else x,
    "reshape": lambda x: x.reshape(-1),
    "flat view": lambda x: x.view(-1) if x.is_contiguous() else x,
    "softmax": lambda x: x.softmax(-1) if x.dim() else x,
    "where": lambda x: torch.where(x > 1, x, -x),
    "cumsum": lambda x: x.cumsum(0) if x.dim() else x,
    "cat": lambda x: torch.cat([x, x]) if x.dim() else x,
    "like": lambda x: torch.ones_like(x) + torch.zeros_like(x),
    "in place": lambda x: x.clone().add_(1),
    "out": lambda x: torch.mul(x, 2, out=torch.empty_like(x)),
    "copy": lambda x: torch.empty_like(x).copy_(x * 2),
    "there and back": lambda x: x.clone() if x.is_cpu else x.cpu().to(x.device),
}


@given(st.sampled_from([(6,), (3, 4), (2, 3, 4), (2, 3, 2, 4)]), st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=6))
def test_strides_are_those_of_the_cpu(shape: tuple[int, ...], names: list[str]) -> None:
    on_cpu = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    on_device = on_cpu.to("xla")
    for name in names:
        on_cpu, on_device = STEPS[name](on_cpu), STEPS[name](on_device)
    torch.testing.assert_close(on_device.cpu(), on_cpu)
    assert _shown(on_device) == _shown(on_cpu)
    assert _shown(on_device.cpu()) == _shown(on_cpu.clone())


def _shown(tensor: Tensor) -> tuple[Any, ...]:
    """Strides but of dimensions of size 1, of which meta tensors have others than the CPU, and what goes by them."""
    strides = [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]
    return tensor.shape, strides, tensor.storage_offset(), tensor.is_contiguous()


MADE: dict[str, Callable[[str], Tensor]] = {
    "empty_strided": lambda d: torch.empty_strided((2, 3), (1, 2), device=d).fill_(3),
    "empty_strided with gaps": lambda d: torch.empty_strided((2, 3), (8, 2), device=d).fill_(3),
    "empty_strided over one element": lambda d: torch.empty_strided((2, 3), (0, 0), device=d).fill_(3),
    "resize_ of a part": lambda d: (_numbers(d, 2, 3) + 1)[1].resize_(2),
    "resize_ to channels_last": lambda d: (_numbers(d, 2, 3, 4, 5) + 1).resize_((1, 2, 4, 5), memory_format=CHANNELS_LAST),
    "resize_ of a transposed result": lambda d: (_numbers(d, 2, 3) + 1).t().resize_(2, 2),
    "resize_as_": lambda d: (_numbers(d, 120) + 1).resize_as_(
        _numbers(d, 2, 3, 4, 5).to(memory_format=CHANNELS_LAST), memory_format=torch.preserve_format
    ),
    "empty in channels_last": lambda d: torch.empty(2, 3, 4, 5, device=d, memory_format=CHANNELS_LAST).zero_(),
    "empty_permuted": lambda d: torch.empty_permuted((2, 3, 4), (2, 0, 1), device=d).zero_(),
    "a transposed upload": lambda d: torch.arange(6.0).reshape(2, 3).t().to(d),
    "as_strided of a transposed result": lambda d: (_numbers(d, 2, 3).t() + 1).as_strided((2, 2), (1, 2), 1),
    "a write through a view": lambda d: _written(_numbers(d, 2, 3).t() + 1),
    "a product": lambda d: _numbers(d, 2, 3).t() @ _numbers(d, 3, 2).t(),
    "linear": lambda d: F.linear(_numbers(d, 3, 2).t(), _numbers(d, 4, 3)),
    "the elements of a dtype": lambda d: (_numbers(d, 2, 4) + 1).t().contiguous().view(torch.int16),
    "out= of other strides": lambda d: torch.add(_numbers(d, 3, 2), 1, out=torch.empty(2, 3, device=d).t()),
    "an activation in channels_last": lambda d: F.relu(_numbers(d, 2, 3, 4, 5).to(memory_format=CHANNELS_LAST)),
    "max_pool2d in channels_last": lambda d: F.max_pool2d(_numbers(d, 2, 3, 4, 4).to(memory_format=CHANNELS_LAST), 2),
    "a convolution in channels_last": lambda d: F.conv2d(_numbers(d, 2, 3, 4, 5).to(memory_format=CHANNELS_LAST), _numbers(d, 2, 3, 2, 2)),
    "a convolution by a weight in channels_last": lambda d: F.conv2d(
        _numbers(d, 2, 3, 4, 5), _numbers(d, 2, 3, 2, 2).to(memory_format=CHANNELS_LAST)
    ),
    "a roll in channels_last": lambda d: _numbers(d, 2, 3, 4, 5).to(memory_format=CHANNELS_LAST).roll((1, 2), (1, 3)),
    "a roll of all elements in channels_last": lambda d: _numbers(d, 2, 3, 4, 5).to(memory_format=CHANNELS_LAST).roll(1),
    "a reflection in channels_last": lambda d: F.pad(_numbers(d, 2, 3, 4, 5).to(memory_format=CHANNELS_LAST), (1, 1, 1, 1), "reflect"),
    "a replication of a part in channels_last": lambda d: F.pad(
        _numbers(d, 2, 6, 4, 5).to(memory_format=CHANNELS_LAST)[:, :3], (1, 1, 1, 1), "replicate"
    ),
    "a pixel_shuffle in channels_last": lambda d: F.pixel_shuffle(_numbers(d, 2, 8, 4, 5).to(memory_format=CHANNELS_LAST), 2),
    "a channel_shuffle in channels_last": lambda d: F.channel_shuffle(_numbers(d, 2, 4, 4, 5).to(memory_format=CHANNELS_LAST), 2),
    "max_unpool2d in channels_last": lambda d: F.max_unpool2d(
        *F.max_pool2d(_numbers(d, 2, 3, 4, 4).to(memory_format=CHANNELS_LAST), 2, return_indices=True), 2
    ),
    "max_pool3d without a batch": lambda d: F.max_pool3d(_numbers(d, 4, 4, 4, 3).permute(3, 0, 1, 2), 2),
    "rrelu of a transposed input": lambda d: F.rrelu(_numbers(d, 2, 3).t()),
    "batch_norm of a transposed input": lambda d: F.batch_norm(_numbers(d, 2, 3, 5, 4).transpose(2, 3), None, None, training=True),
    "batch_norm in evaluation": lambda d: F.batch_norm(
        _numbers(d, 2, 3, 4, 4).to(memory_format=CHANNELS_LAST), torch.zeros(3, device=d), torch.ones(3, device=d)
    ),
    **{
        f"{like.__name__} of {start} in {end}": lambda d, like=like, start=start, end=end: like(
            _numbers(d, 2, 3, 4, 5).to(memory_format=start), memory_format=end
        ).fill_(2)
        for like in (torch.zeros_like, torch.ones_like, torch.empty_like, torch.rand_like, torch.randn_like)
        for start, end in ((CHANNELS_LAST, torch.contiguous_format), (torch.contiguous_format, CHANNELS_LAST))
    },
    "full_like in another format": lambda d: torch.full_like(_numbers(d, 2, 3, 4, 5), 2.0, memory_format=CHANNELS_LAST),
    "batch_norm in channels_last": lambda d: F.batch_norm(
        _numbers(d, 2, 3, 4, 4).to(memory_format=CHANNELS_LAST), None, None, training=True
    ),
    "t_ of a result": lambda d: (_numbers(d, 2, 3) + 1).t_(),
}


def _numbers(device: str, *shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape).to(device)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_out_over_a_window_that_is_too_small(device: str) -> None:
    x = torch.zeros(2, 4, device=device)
    torch.arange(3, out=x.flatten()[2:2])
    torch.add(torch.ones(2, device=device), 1, out=x[1, 1:1])
    torch.cat([torch.ones(1, device=device)], out=x[1, :0])
    assert x.tolist() == [[0, 0, 0, 1], [1, 2, 2, 0]]
    assert torch.fft.fftfreq(5, 0.1, device=device).tolist() == [0, 2, 4, -4, -2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bool, torch.uint8, torch.int64, torch.bfloat16], ids=str)
def test_memory_that_nobody_wrote_to_where_torch_fills_it(dtype: torch.dtype) -> None:
    made: list[Callable[[str], Tensor]] = [
        lambda d: torch.empty(2, 3, dtype=dtype, device=d),
        lambda d: torch.empty_like(torch.zeros(3, dtype=dtype, device=d)),
        lambda d: torch.empty_strided((2, 2), (3, 1), dtype=dtype, device=d),
        lambda d: torch.zeros(2, dtype=dtype, device=d).resize_(4),
    ]
    torch.use_deterministic_algorithms(True)
    try:
        for make in made:
            torch.testing.assert_close(make("xla").cpu(), make("cpu"), equal_nan=True)
        assert make("xla").cpu()[:2].tolist() == [0, 0]
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.empty(2, dtype=dtype, device="xla").tolist() == [0, 0]


def _written(x: Tensor) -> Tensor:
    x[0].fill_(9)
    return x


@pytest.mark.parametrize("name", MADE)
def test_what_makes_tensors_gives_the_strides_of_the_cpu(name: str) -> None:
    on_cpu, on_device = MADE[name]("cpu"), MADE[name]("xla")
    assert on_device.stride() == on_cpu.stride() and on_device.is_contiguous() == on_cpu.is_contiguous()
    torch.testing.assert_close(on_device.cpu(), on_cpu)
    for memory_format in (torch.contiguous_format, *([CHANNELS_LAST] if on_cpu.dim() == 4 else [])):
        assert on_device.is_contiguous(memory_format=memory_format) == on_cpu.is_contiguous(memory_format=memory_format)


def test_gradients_have_the_strides_of_the_cpu() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    strides = []
    for device in ("cpu", "xla"):
        ours, x = copy.deepcopy(model).to(device), torch.ones(4, 3).to(device).requires_grad_()
        ours(x.t().contiguous().t()).sum().backward()
        strides.append([tensor.grad.stride() for tensor in (x, *ours.parameters()) if tensor.grad is not None])
    assert strides[0] == strides[1]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storages_are_those_of_the_cpu() -> None:
    """Read and written element by element, in the order in memory, and shared by views."""
    seen = []
    for device in ("cpu", "xla"):
        x = (_numbers(device, 2, 3) + 1).t()
        storage = x.storage()
        storage[1] = 9.0
        untyped = x.untyped_storage()
        copied = untyped.clone()
        x.add_(1)
        seen.append([storage.tolist(), storage[2], len(storage), untyped.tolist(), copied.tolist(), untyped.cpu().tolist(), x.tolist()])
        assert storage.data_ptr() == x[1:].untyped_storage().data_ptr() and x.is_set_to(x) and storage.device.type == device
    assert seen[0] == seen[1]

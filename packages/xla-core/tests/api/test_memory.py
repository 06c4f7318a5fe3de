"""Memory in use and exchange of buffers by DLPack."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.utils.dlpack import from_dlpack, to_dlpack


def test_all_numbers_are_there() -> None:
    info = xm.get_memory_info()
    assert all(type(info[name]) is int for name in ("bytes_used", "bytes_limit", "peak_bytes_used", "kb_free", "kb_total"))
    assert 0 <= info["bytes_used"] <= info["peak_bytes_used"] <= info["bytes_limit"]
    assert info["kb_total"] == info["bytes_limit"] // 1024 and info["kb_free"] <= info["kb_total"]


def test_buffers_are_counted_and_given_back(run: Callable[..., str]) -> None:
    """In a process without tensors of other tests, which die when they like."""
    run("""
        import torch
        import torch_xla
        import torch_xla.core.xla_model as xm

        torch_xla.sync()
        before = xm.get_memory_info("xla:0")["bytes_used"]
        tensor = torch.zeros(1024, 256).to("xla")
        assert xm.get_memory_info(torch.device("xla:0"))["bytes_used"] - before == tensor.numel() * 4
        peak = xm.get_memory_info()["peak_bytes_used"]
        del tensor
        after = xm.get_memory_info()
        assert after["bytes_used"] == before and after["peak_bytes_used"] == peak >= before + 1024 * 256 * 4, (before, peak, after)
    """)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_round_trip_to_torch(dtype: torch.dtype) -> None:
    source = torch.tensor([[1, 0, 3], [0, 5, 6]]).to(dtype)
    tensor = source.to("xla")
    cpu = torch.utils.dlpack.from_dlpack(to_dlpack(tensor))
    assert cpu.dtype is dtype and torch.equal(cpu, source)
    back = from_dlpack(source)
    assert back.device.type == "xla" and back.dtype is dtype and torch.equal(back.cpu(), source)
    assert torch.equal(from_dlpack(torch.utils.dlpack.to_dlpack(source)).cpu(), source)


def test_what_was_handed_out_is_never_overwritten() -> None:
    tensor = torch.arange(4.0).to("xla") + 1
    cpu = torch.utils.dlpack.from_dlpack(to_dlpack(tensor))
    for _ in range(3):
        tensor.mul_(2)
        torch_xla.sync(wait=True)
    assert cpu.tolist() == [1.0, 2.0, 3.0, 4.0] and tensor.tolist() == [8.0, 16.0, 24.0, 32.0]


def test_what_came_in_is_never_overwritten() -> None:
    source = np.arange(64, dtype=np.float32)
    tensor = from_dlpack(source)
    for _ in range(3):
        tensor += 1
        torch_xla.sync(wait=True)
    assert source.tolist() == list(range(64)) and tensor[:2].tolist() == [3.0, 4.0]


def test_exchange_with_jax() -> None:
    array = jax.numpy.arange(6, dtype=jax.numpy.float32).reshape(2, 3)
    tensor = from_dlpack(array)
    assert (tensor @ tensor.t()).tolist() == [[5.0, 14.0], [14.0, 50.0]]
    view = from_dlpack(torch.arange(6.0).reshape(2, 3).t())
    assert view.shape == (3, 2) and view.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_views_and_pending_results_are_exported_as_shown() -> None:
    tensor = torch.arange(6.0).to("xla").view(2, 3) * 2
    assert torch.utils.dlpack.from_dlpack(to_dlpack(tensor[1])).tolist() == [6.0, 8.0, 10.0]


def test_a_cpu_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="xla tensor"):
        to_dlpack(torch.ones(1))

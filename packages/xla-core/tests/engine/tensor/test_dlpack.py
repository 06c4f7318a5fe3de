"""DLPack of xla tensors: arrays of other libraries over the same memory, and tensors over theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
from torch_xla.utils.dlpack import from_dlpack
from xla_core.abi.tensors import buffer_of


def address(array: Any) -> int:
    return int(array.unsafe_buffer_pointer())


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_jax_shows_the_buffer_itself(dtype: torch.dtype) -> None:
    source = torch.arange(6).reshape(2, 3).to(dtype)
    x = source.to("xla")
    with jax.enable_x64(True):
        array = jnp.from_dlpack(x)
    assert address(array) == address(buffer_of(x))
    torch.testing.assert_close(torch.from_dlpack(array), source)


def test_what_goes_out_stays_as_it_was() -> None:
    x = torch.arange(4.0, device="xla")
    shown = {"jax": jnp.from_dlpack(x), "numpy": np.from_dlpack(x), "torch": torch.from_dlpack(x)}
    x.add_(10)
    torch_xla.sync(wait=True)
    assert all(each.tolist() == [0.0, 1.0, 2.0, 3.0] for each in shown.values())
    assert x.tolist() == [10.0, 11.0, 12.0, 13.0]


@pytest.mark.parametrize("part", [lambda x: x[1], lambda x: x.t(), lambda x: (x * 2).sum(0)], ids=["row", "transposed", "pending"])
def test_views_and_pending_results_are_computed_first(part: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(np.asarray(jnp.from_dlpack(part(x.to("xla")))), part(x).numpy())


def test_parameters_go_out_detached() -> None:
    layer = torch.nn.Linear(2, 2).to("xla")
    with pytest.raises(BufferError, match="require gradient"):
        jnp.from_dlpack(layer.weight)
    array = jnp.from_dlpack(layer.weight.detach())
    np.testing.assert_array_equal(np.asarray(array), layer.weight.detach().cpu().numpy())


def test_the_device_is_that_of_the_buffer() -> None:
    x = torch.ones(2, device="xla")
    assert x.__dlpack_device__() == buffer_of(x).__dlpack_device__() == torch.ones(2).__dlpack_device__()


def test_capsules_are_over_the_buffer() -> None:
    x = torch.arange(3.0, device="xla")
    for make in (torch.to_dlpack, torch.utils.dlpack.to_dlpack):
        assert torch.from_dlpack(make(x)).tolist() == [0.0, 1.0, 2.0]
        assert torch.from_dlpack(make(torch.ones(1))).tolist() == [1.0]


def test_jax_arrays_come_in_without_a_copy_or_as_torch_does_it() -> None:
    array = jnp.arange(6.0)
    shared = from_dlpack(array)
    assert shared.device.type == "xla" and address(buffer_of(shared)) == address(array)
    moved = torch.from_dlpack(array).to("xla")
    assert torch.equal(moved, shared)
    again = from_dlpack(shared)
    assert address(buffer_of(again)) == address(array)

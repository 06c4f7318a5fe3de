"""Tensors whose buffers were given away, to JAX or DLPack, while operations that use them are pending."""

from __future__ import annotations

import numpy as np
import torch

import torch_xla
from xla_core.abi.tensors import buffer_of


def numbers(start: float) -> torch.Tensor:
    return torch.arange(4.0, device="xla") + start


def test_reads_without_a_sync_show_the_tensor_itself() -> None:
    other, lent = numbers(0), numbers(100)
    torch_xla.sync()
    other + 1  # pending operations, so that both are leaves
    buffer_of(lent)
    later = lent + 1
    for turn in range(100):  # until dead operations are dropped, and slots move
        float((other * turn + turn).sum())
        assert (lent * 3).tolist() == [300, 303, 306, 309]
    assert later.tolist() == [101, 102, 103, 104]


def test_a_view_whose_buffer_was_lent_is_read_anew() -> None:
    whole = numbers(0) * 2
    view = whole[1:]
    pending = view + 1
    lent = buffer_of(view)
    assert whole[1:].clone().tolist() == [2, 4, 6]
    del view
    assert (whole[1:] * 2).tolist() == [4, 8, 12]
    assert pending.tolist() == [3, 5, 7] and np.asarray(lent).tolist() == [2, 4, 6]


def test_a_lent_buffer_outlives_its_tensor() -> None:
    whole = torch.ones(1 << 16, device="xla")
    torch_xla.sync()
    for _ in range(3):  # as the first of them, a program may be run twice
        view = whole[1:] + 1
        lent = buffer_of(view)
        used = view * 2
        del view
        torch_xla.sync()
        assert np.asarray(lent)[0] == 2 and used[0].item() == 4

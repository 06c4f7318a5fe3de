"""Donation of buffers by users, so that programs write results into the memory of inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from xla_core.api import devices
from xla_core.engine.runtime import client, donation
from xla_core.engine.tensor.plain import unwrapped
from xla_core.engine.tensor.values import value_of


def _set_buffer_donation(tensor: torch.Tensor, donate: bool) -> bool:
    """Let the next step take over the buffer of `tensor`. False if it cannot: it is pending, or shared with another library.

    The next sync writes a result of the same shape and dtype there; reading `tensor` afterwards raises RuntimeError.
    Reads, `_xla_sync_multi`, cached graphs and those of `torch.compile` do so only where
    `_xla_set_enable_alias_with_buffer_donor_config` says so, captured calls and eager mode not at all.
    """
    return donation.mark(value_of(unwrapped(tensor)), donate)


def _get_buffer_donation(tensor: torch.Tensor) -> bool:
    """Whether the buffer of `tensor` is marked for donation. Donating it, or writing to the tensor, ends that."""
    return donation.is_marked(value_of(unwrapped(tensor)))


def _xla_set_enable_alias_with_buffer_donor_config(enable_user_config_alias: bool = False, device: str = "") -> None:
    """Let programs other than steps heed `_set_buffer_donation` on a device (empty: the current one)."""
    donation.enable(_index(device), enable_user_config_alias)


def _xla_get_enable_alias_with_buffer_donor_config(device: str = "") -> bool:
    """Whether programs other than steps heed `_set_buffer_donation` on a device (empty: the current one)."""
    return donation.enabled(_index(device))


@contextmanager
def alias_with_buffer_donor_config(should_alias: bool = True) -> Iterator[None]:
    """A context that decides whether reads, cached graphs and graphs of `torch.compile` take over buffers marked for donation."""
    index = client.current_index()
    before = donation.enabled(index)
    donation.enable(index, should_alias)
    try:
        yield
    finally:
        donation.enable(index, before)


def _index(device: str) -> int:
    return devices.local_index(device) if device else client.current_index()

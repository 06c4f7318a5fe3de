"""Buffers that the user gives away, so that programs write results where inputs were."""

from __future__ import annotations

import torch

from xla_core.api import devices
from xla_core.api.conversion import plain
from xla_core.frontend.values import value_of
from xla_core.runtime import client, donation


def _set_buffer_donation(tensor: torch.Tensor, donate: bool) -> bool:
    """Let the next step take over the buffer of `tensor`, if it has one; False if not (it is pending, or shared with another library).

    The next sync writes a result of the same shape and dtype there; reading `tensor` afterwards raises RuntimeError.
    `_xla_sync_multi` and cached graphs do so only under `_xla_set_enable_alias_with_buffer_donor_config`, captured calls and eager
    mode not at all.
    """
    return donation.mark(value_of(plain(tensor)), donate)


def _get_buffer_donation(tensor: torch.Tensor) -> bool:
    """Whether the buffer of `tensor` is to be given away: not any more once it has been, or when the tensor was written to."""
    return donation.is_marked(value_of(plain(tensor)))


_enabled: set[int] = set()


def _xla_set_enable_alias_with_buffer_donor_config(enable_user_config_alias: bool = False, device: str = "") -> None:
    """Let programs that are no steps heed `_set_buffer_donation`, too, on one device (empty: the current one)."""
    index = _index(device)
    if enable_user_config_alias:
        _enabled.add(index)
    else:
        _enabled.discard(index)


def _xla_get_enable_alias_with_buffer_donor_config(device: str = "") -> bool:
    """Whether programs of a device (empty: the current one) that are no steps heed `_set_buffer_donation`."""
    return _index(device) in _enabled


def _index(device: str) -> int:
    return devices.local_index(device) if device else client.current_index()

"""SPMD mode: one virtual device that stands for all physical ones."""

from __future__ import annotations

import gc
import warnings
from dataclasses import replace

from xla_core.api import plugins
from xla_core.base import config
from xla_core.base.budgets import budget
from xla_core.base.installation import SPMD
from xla_core.engine.runtime import client
from xla_core.engine.runtime.topology import set_topology, topology
from xla_core.engine.tensor import sharding
from xla_core.engine.tensor.tensor import XLATensor


@budget()
def is_spmd() -> bool:
    """True in SPMD mode: the one device `xla:0` stands for all physical ones. See `use_spmd`."""
    return config.USE_SPMD.get()


class _Mode:
    """Whether `use_spmd` of this process set the variable."""

    ours = False


@budget()
def use_spmd(auto: bool | None = False) -> None:
    """Switch the process to SPMD mode: `xla:0` stands for all devices; the compiler splits programs over them.

    auto: sets `XLA_AUTO_SPMD`: parameters that move to `xla` are sharded over all devices, along their largest dimension that they divide
    evenly, other tensors along the first; what they do not divide is replicated. `mark_sharding` overrules it.
    """
    plugins.demand("torch_xla.runtime.use_spmd", SPMD)
    if config.USE_SPMD.is_set() and not _Mode.ours:
        warnings.warn("XLA_USE_SPMD is already set: torch_xla.runtime.use_spmd() alone is enough", stacklevel=2)
    if not config.USE_SPMD.get() and _tensors_exist():
        warnings.warn("there are xla tensors from before SPMD mode: they count as replicated", stacklevel=2)
    if auto:
        config.AUTO_SPMD.set(True)
    config.USE_SPMD.set(True)
    _Mode.ours = True
    set_topology(replace(topology(), spmd=True))
    if client.started() and not client.client().placements[0].is_mesh:
        client.set_current_index(0)
        sharding.reshard_live_data(client.enter_spmd().sharding)


def _tensors_exist() -> bool:
    return client.started() and any(type(found) is XLATensor for found in gc.get_objects())

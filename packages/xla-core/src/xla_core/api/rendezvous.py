"""Objects and bytes between replicas: the rendezvous of `xm`, and what stands on it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from xla_core.api.collectives import backend, is_alone
from xla_core.api.conversion import maybe_convert_to_cpu
from xla_core.api.hardware import global_device_count
from xla_core.api.job import global_ordinal, world_size
from xla_core.api.step import sync
from xla_core.api.user_modules import xm, xr
from xla_core.base.budgets import budget


@budget(compiles=None, reads=None)
def xla_rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """The payloads of all replicas, in order of their ordinals; a step sync before and after.

    ordinals: None, or as many as there are replicas. tag: names the rendezvous, the same on all replicas.
    Raises TypeError for another payload than bytes, ValueError for some ordinals only, RuntimeError, on all, for different tags.
    """
    if not isinstance(payload, bytes):
        raise TypeError(f"the payload of a rendezvous is bytes, got {type(payload).__name__}")
    count = xr(global_device_count)() if is_alone() else world_size()
    if ordinals and len(ordinals) != count:
        raise ValueError(f"a rendezvous takes all {count} devices, got ordinals {list(ordinals)}")
    sync()
    parts = backend("xla_rendezvous").exchange(payload, tag)
    sync()
    return parts


@budget(compiles=None, reads=None)
def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """As `xla_rendezvous`."""
    return xm(xla_rendezvous)(payload, replicas or None, tag=tag)


@budget(compiles=None, reads=None)
def do_on_ordinals(target: Callable[..., Any], data: Any = (), ordinals: Sequence[int] | int = (0,)) -> Any:
    """`target(*data)` with CPU tensors on the replicas `ordinals`, None on others; then a rendezvous of all.

    An exception of `target` propagates there; the others get an error that names this replica.
    """
    chosen = [ordinals] if isinstance(ordinals, int) else list(ordinals)
    running = xr(global_ordinal)() in chosen
    cpu = maybe_convert_to_cpu(data, convert=running)
    result = None
    try:
        if running:
            result = target(*cpu)
    except BaseException as error:
        backend("do_on_ordinals").fail(error, "do_on_ordinals")
        raise
    xm(rendezvous)("torch_xla.core.xla_model.do_on_ordinals")
    return result


@budget(compiles=None, reads=None)
def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """`reduce_fn` of the data of all replicas, on every one. Only processes of this job can have sent what is unpickled here."""
    cpu = maybe_convert_to_cpu(data)
    if is_alone():  # what does not pickle serves as well
        xm(rendezvous)(tag)
        return reduce_fn([cpu])
    parts = xm(rendezvous)(tag, pickle.dumps(cpu))
    return reduce_fn([pickle.loads(part) for part in parts])  # noqa: S301

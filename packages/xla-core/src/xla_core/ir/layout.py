"""The sharding of tensors over several devices (SPMD), and the operation that gives one to a pending result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xla_core.ir.aval import Aval
from xla_core.ir.graph import operation_at
from xla_core.ir.signature import HOLE, Signature
from xla_core.ir.tape import Entry

_NAME = "xla.lay_out"
_AXIS = "xla_device"  # and a number: axes of the mesh over which tensors without a layout are replicated


def everywhere(devices: np.ndarray[Any, Any]) -> NamedSharding:
    """Replicated over devices, on a mesh with an axis for each prime factor: jax describes what XLA chose in terms of its axes."""
    sizes, rest, factor = [], devices.size, 2
    while rest > 1:
        if rest % factor == 0:
            sizes.append(factor)
            rest //= factor
        else:
            factor += 1
    names = tuple(f"{_AXIS}{number}" for number in range(max(1, len(sizes))))
    return NamedSharding(Mesh(devices.reshape(sizes or [1]), names), PartitionSpec())


def spans_devices(form: Any) -> bool:
    """Whether buffers that lie so are arrays of one program over all devices of the job."""
    return isinstance(form, NamedSharding) and form.mesh.axis_names[0] == f"{_AXIS}0"


@dataclass(frozen=True, slots=True)
class Layout:
    """The sharding of one tensor; its text is the same in every process. note: what who asked for it wants to keep with it."""

    sharding: NamedSharding
    note: Any = field(default=None, compare=False)

    def stored(self, shape: tuple[int, ...]) -> Layout:
        """As arrays of `shape` can lie: a dimension that its devices do not divide evenly is kept whole."""
        found = _stored(self.sharding, shape)
        return self if found == self.sharding else Layout(found)

    def __repr__(self) -> str:
        return sharding_text(self.sharding)


@lru_cache(maxsize=4096)  # asked for each annotated tensor in each step
def _stored(sharding: NamedSharding, shape: tuple[int, ...]) -> NamedSharding:
    mesh = sharding.mesh
    entries = tuple(sharding.spec)
    kept = tuple(entry if size % parts_of(mesh.shape, entry) == 0 else None for entry, size in zip(entries, shape, strict=False))
    return sharding if kept == entries else NamedSharding(mesh, PartitionSpec(*kept))


def parts_of(sizes: Any, entry: Any) -> int:
    """The number of pieces that an entry of a spec makes of its dimension."""
    names = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
    return int(np.prod([sizes[name] for name in names], dtype=np.int64))


def sharding_text(sharding: Any) -> str:
    """A sharding in words that say all: of a mesh its sizes, names and devices in order, and the spec."""
    if not isinstance(sharding, NamedSharding):
        return repr(sharding)
    mesh = sharding.mesh
    return f"<{dict(mesh.shape)} {[device.id for device in mesh.devices.flat]} {sharding.spec}>"


_signatures: dict[Any, Signature] = {}


def lay_out(avals: Sequence[Aval], layouts: Sequence[Layout]) -> Signature:
    """The operation that gives each of its operands back, lying as told."""
    key = (tuple(avals), tuple(layouts))
    found = _signatures.get(key)
    if found is None:
        holes = [HOLE] * len(avals)
        found = _signatures[key] = Signature(_NAME, _lower, (holes,), {"layouts": tuple(layouts)}, tuple(avals))
    return found


def _lower(context: Any, operands: list[jax.Array], layouts: tuple[Layout, ...]) -> list[jax.Array]:
    return [jax.lax.with_sharding_constraint(x, layout.sharding) for x, layout in zip(operands, layouts, strict=True)]


def layout_at(entries: Sequence[Entry], slot: int) -> Layout | None:
    """The sharding that the result at `slot` was given, if any."""
    start = operation_at(entries, slot)
    entry = entries[start]
    if type(entry) is not tuple or entry[0].name != _NAME:
        return None
    layouts: tuple[Layout, ...] = entry[0].kwargs["layouts"]
    return layouts[0] if len(layouts) == 1 else layouts[slot - start - 1]

"""The one door: all of xla_core that a package beside it, or an integrator, may import (`xla_core.testing` and `xla_core.interop` aside).

The names are in modules by subject, at most a dozen each, and each module's docstring is its manual:

* `operators`: bring an operation of one's own, with its lowering;
* `graph`: see recorded programs, change them by passes, follow how they are built and run;
* `differences`: how a program differs from those that are known;
* `texts`: recorded programs as text;
* `tensors`: between tensors, device buffers and memory of the host;
* `sharding`: data over the devices of a mesh, and regions that are not partitioned (SPMD);
* `collectives`: reductions and groups of replicas;
* `plugins`: what a distribution may bring, behind protocols;
* `process`: this process and its devices;
* `job`: which process of a job this is, and which replica;
* `settings`: environment variables as typed rows;
* `declarations`: until when a name works, and what a call of it may cost;
* `events`: hear of compilations, executions, transfers and syncs, with the user's line;
* `files`: replace files atomically;
* `metrics`: counters and metrics, to read and to add to; what is on the devices now;
* `targets`: devices that programs are compiled for, here or elsewhere;
* `views`: what a tensor shows of data that it shares.

A package calls `require` before it imports any of them, so that wheels that do not fit say which of the two to change:

    >>> from xla_core import abi
    >>> abi.require((4, 0), "my-package")

No logic lives here, and importing it registers the device and starts nothing. What is locked in `abi.lock.json`, signatures, fields and
methods, changes with a new `ABI_VERSION` only: additions with a minor, all else with a major.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from xla_core.activation import activate
from xla_core.engine.runtime.abi_version import ABI_VERSION, require

if TYPE_CHECKING:
    from xla_core.abi import (
        collectives,
        declarations,
        differences,
        events,
        files,
        graph,
        job,
        metrics,
        operators,
        plugins,
        process,
        settings,
        sharding,
        targets,
        tensors,
        texts,
        views,
    )

__all__ = [
    "ABI_VERSION",
    "collectives",
    "declarations",
    "differences",
    "events",
    "files",
    "graph",
    "job",
    "metrics",
    "operators",
    "plugins",
    "process",
    "require",
    "settings",
    "sharding",
    "targets",
    "tensors",
    "texts",
    "views",
]

activate()


def __getattr__(name: str) -> ModuleType:
    """The module of a subject, loaded when it is first asked for: few packages need all."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")

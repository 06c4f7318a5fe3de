"""Targets: devices that programs are compiled for, attached to this process or not.

    >>> from xla_core.abi.targets import planned_devices
    >>> planned_devices()  # this process runs its programs
    0

* `Target` has the name, platform, model, shape and memory of some devices; `target_named` finds one (`v5e:4x4`, `h100x8`), and within
  `target(name)` the device `xla` stands for it. A process may also be started with `XLA_TARGET`.
* `planned_devices` tells how many devices a process plans for, instead of running its programs; `compiles_only`, whether it is within a
  block of `torch_xla.compile_only`, where it runs none on its own.
* `become_replica(count)` makes this process the first of so many replicas of its target; `as_replica(count)` does so within a block, so
  that a launcher calls a function once where it would start a process for each.
* `known_elements` gives the integers of a tensor on such a target that the host knows: what other replicas would tell this one, of
  which all do the same, follows from them.
* `gpu_memory_bandwidth` is what the compiler of a GPU is told of its memory.
* `as_shard` makes a buffer this process's shard of an array over several devices; `call` calls a `jax.jit` function over buffers. Those
  of a target that is not attached have a shape, a dtype and a sharding, and no memory: over them the function is compiled, and its
  results are described.

Guarantees: programs for a target that is not attached are compiled, never run; nothing there waits for another process.
"""

from __future__ import annotations

from xla_core.api.compile_only import compiles_only
from xla_core.api.targets import as_replica, become_replica, known_elements, planned_devices, target
from xla_core.base.accelerators import gpu_memory_bandwidth
from xla_core.engine.compile.planned_program import call
from xla_core.engine.placement.planned import as_shard
from xla_core.engine.placement.target import Target
from xla_core.engine.placement.topologies import target_named

__all__ = [
    "Target",
    "as_replica",
    "as_shard",
    "become_replica",
    "call",
    "compiles_only",
    "gpu_memory_bandwidth",
    "known_elements",
    "planned_devices",
    "target",
    "target_named",
]

"""Build an executable for a graph: trace and compile with `jax.jit`, or load it from the on-disk cache."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from xla_core import config
from xla_core.compile.emit import Constants, Scope, program
from xla_core.ir.aval import Aval
from xla_core.ir.graph import Graph, aval_at
from xla_core.ir.layout import layout_at, spans_devices
from xla_core.ir.manual import form_of_parts

Executable = Callable[..., Any]

# For the CPU, without what miscomputes there (jaxlib 0.10.2 to 0.12.0, on processors with AVX-512; a test has the cases):
_CPU_OPTIONS = {
    # YNNPACK reads memory that is not its own where it fuses a broadcast, a product and a sum of many dimensions. It keeps single
    # matrix products.
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
    # Keeps the barriers in place that `ops/axes.py` writes blocks with; from jaxlib 0.12 on they are kept by default.
    "xla_disable_hlo_passes": "cse_barrier_expander",
}


def compiler_options(platform: str) -> dict[str, str]:
    """The XLA compiler options for a platform (`cpu`, `cuda`, …), without those that `XLA_FLAGS` sets."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in _CPU_OPTIONS.items() if name not in flags} if platform == "cpu" else {}


def donated_arguments(graph: Graph) -> tuple[int, ...]:
    """The dead leaves that some result can take over (same shape and dtype), as argument numbers."""
    leaves = [entry for entry in graph.entries if type(entry) is Aval]
    wanted = Counter(_layout(aval_at(graph.entries, slot)) for slot in graph.outs)
    donated = []
    for number in graph.dead:
        layout = _layout(leaves[number])
        if wanted[layout]:
            wanted[layout] -= 1
            donated.append(number)
    return tuple(donated)


def _layout(aval: Aval | None) -> tuple[Any, ...] | None:
    return None if aval is None else (aval.shape, aval.physical)


def jitted(graph: Graph, constants: Constants, home: Sharding, name: str, scope: Scope | None = None, told: bool = False) -> Any:
    """The graph as a `jax.jit` function over `(*buffers, *packed)`; compiles at its first call.

    home: how the buffers lie. name: of the module in profiles. told: in SPMD mode, results without a layout are replicated, not as
    the compiler likes. Raises (at that call) LoweringError for a lowering that fails.
    """
    run = across_replicas(program(graph, constants, scope, home, config.CHECKS.get()), home)
    run.__name__ = name
    return jax.jit(
        run,
        keep_unused=True,
        donate_argnums=donated_arguments(graph),
        out_shardings=_result_forms(graph, home, told),
        compiler_options=compiler_options(devices_of(home)[0].platform),
    )


def _result_forms(graph: Graph, home: Sharding, told: bool) -> Any:
    """The explicit shardings of a program's results: of those that were given one, and of all if no argument says where it runs."""
    free = not told and any(type(entry) is Aval for entry in graph.entries)
    otherwise = None if free else home
    if not spans_devices(home):
        return otherwise
    return (*[_form_at(graph, slot, home) or otherwise for slot in graph.outs], otherwise)


def _form_at(graph: Graph, slot: int, home: Sharding) -> NamedSharding | None:
    aval = aval_at(graph.entries, slot)
    if aval is not None and aval.manual:
        return form_of_parts(home)
    layout = layout_at(graph.entries, slot)
    return None if layout is None else layout.sharding


def across_replicas(function: Callable[..., Any], home: Sharding) -> Callable[..., Any]:
    """`function` as each replica runs it over its own part of buffers that lie so: collectives inside reach the others."""
    if not isinstance(home, NamedSharding) or spans_devices(home):
        return function
    everywhere = PartitionSpec()
    spread: Callable[..., Any] = jax.shard_map(function, mesh=home.mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    return spread


def devices_of(home: Sharding) -> list[jax.Device]:
    """The devices that run a program over buffers that lie so, in the program's order."""
    return list(home.mesh.devices.flat) if isinstance(home, NamedSharding) else list(home.device_set)

"""Run a collective among some replicas only: a program of its own over their devices, of which the other replicas know nothing.

A program over the mesh of all replicas names all of them in its collectives, and all must run it. What only some run is cut out:
what the inputs depend on is computed, then the collective runs over a mesh of the members, then recording goes on. Collectives that are
pending run before it, so that all members run theirs in the order in which they were called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xla_core.abi.operators import REPLICA_AXIS, Context
from xla_core.abi.process import client
from xla_core.abi.targets import as_shard, call
from xla_core.abi.tensors import buffer_of, materialize, tensor_from_buffer
from xla_distributed.collectives.definition import CollectiveOp
from xla_distributed.job import flight_recorder

Ordinals = tuple[int, ...]


def run_apart(
    collective: CollectiveOp, inputs: Any, rest: Sequence[Any], members: Ordinals, token: torch.Tensor
) -> tuple[Any, torch.Tensor]:
    """Run a collective among `members`, of which this replica is one; its results and the next token.

    inputs: a tensor, or a list of them; rest: the collective's other arguments.
    """
    single = isinstance(inputs, torch.Tensor)
    listed = [inputs] if single else list(inputs)
    materialize([*listed, token])
    expected = _expected(collective, inputs, token, rest)
    sharding = _sharding(members)
    arrays = [as_shard(buffer_of(tensor), sharding) for tensor in (*listed, token)]
    scalars = {index: np.float64(value) for index, value in enumerate(rest) if isinstance(value, float) and value != 1}
    fixed = tuple(_hashable(value) for index, value in enumerate(rest) if index not in scalars)
    program = _program(collective, sharding, single, fixed, tuple(scalars), tuple(tuple(tensor.shape) for tensor in expected))
    with jax.enable_x64(True):
        arguments = (*arrays, *scalars.values())
        if len(members) > 1:
            outputs = flight_recorder.run_among(members, _line(collective, listed, rest), program, arguments)
        else:
            outputs = program(*arguments)
    results = [tensor_from_buffer(array.addressable_data(0), like.dtype) for array, like in zip(outputs, expected, strict=True)]
    return (results[0] if single else results[:-1]), results[-1]


def _expected(collective: CollectiveOp, inputs: Any, token: torch.Tensor, rest: Sequence[Any]) -> list[torch.Tensor]:
    """Tensors without data, like the results and the next token."""

    def empty(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    meta_inputs = empty(inputs) if isinstance(inputs, torch.Tensor) else [empty(tensor) for tensor in inputs]
    results, next_token = collective.operation(meta_inputs, empty(token), *rest)
    return [*([results] if isinstance(results, torch.Tensor) else results), next_token]


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _line(collective: CollectiveOp, inputs: Sequence[torch.Tensor], rest: Sequence[Any]) -> str:
    """Describe the collective, in the same words on all members that issue it."""
    shapes = ", ".join(f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in inputs)
    return f"{collective.name}({', '.join([shapes, *map(str, rest)])})"


@cache
def _sharding(members: Ordinals) -> NamedSharding:
    """One shard for each member, as `Client.default_shardings` has one for each replica."""
    all_replicas = client().default_shardings[0]
    devices = list(all_replicas.mesh.devices.flat if isinstance(all_replicas, NamedSharding) else all_replicas.device_set)
    return NamedSharding(Mesh(np.array([devices[ordinal] for ordinal in members]), (REPLICA_AXIS,)), PartitionSpec())


@cache
def _program(
    collective: CollectiveOp,
    sharding: NamedSharding,
    single: bool,
    fixed: tuple[Any, ...],
    scalar_indices: tuple[int, ...],
    shapes: tuple[tuple[int, ...], ...],
) -> Callable[..., Any]:
    """The collective as a program over the members, called with the inputs, the token and the arguments at `scalar_indices`.

    single: there is one input, and it comes alone; fixed: the other arguments; shapes: of the results and the token.
    """

    def run(*arguments: Any) -> Any:
        end = len(arguments) - len(scalar_indices)
        *inputs, token = arguments[:end]
        rest = list(fixed)
        for index, value in zip(scalar_indices, arguments[end:], strict=True):
            rest.insert(index, value)
        out = tuple(jax.ShapeDtypeStruct(shape, x.dtype) for shape, x in zip(shapes, (*inputs, token), strict=True))
        context = Context(out, platform=platform)
        return collective.lower(context, inputs[0] if single else inputs, token, *rest)

    replicated = PartitionSpec()
    platform = sharding.mesh.devices.flat[0].platform
    program = jax.jit(jax.shard_map(run, mesh=sharding.mesh, in_specs=replicated, out_specs=replicated, check_vma=False))
    return partial(_call, program, platform == "cpu")


def _call(program: Callable[..., Any], wait: bool, *arguments: Any) -> Any:
    """The results of a program. wait: return only when it has run: on CPU, a running one would take one of the threads that compile."""
    results = call(program, *arguments)
    if wait:
        results[-1].block_until_ready()
    return results

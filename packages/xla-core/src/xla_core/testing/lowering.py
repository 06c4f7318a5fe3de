"""Check one lowering against stock torch on the CPU, without devices, recording or caches."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh

from xla_core.base.dtypes import natural_dtype
from xla_core.base.private_torch import OpOverload, tree_flatten, tree_map
from xla_core.engine.compile.options import compiler_options
from xla_core.engine.placement.manual import REPLICA_AXIS
from xla_core.engine.placement.placement import Replicas
from xla_core.engine.placement.target import attached
from xla_core.ops.table import TABLE, Context

_PLACEMENT = ("device", "layout", "pin_memory", "memory_format")


def to_array(tensor: torch.Tensor) -> jax.Array:
    """A jax array with a copy of a CPU tensor's values."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().clone()
    array: jax.Array = jax.dlpack.from_dlpack(plain)
    return array


def to_tensor(array: jax.Array) -> torch.Tensor:
    """A CPU tensor with a copy of an array's values."""
    return torch.utils.dlpack.from_dlpack(array).clone()


def lower_once(
    func: OpOverload, expected: Any, *args: Any, seed: int | None = None, replica: bool = False, platform: str | None = None, **kwargs: Any
) -> list[torch.Tensor | None]:
    """The results of `func`'s lowering under `jax.jit`, as CPU tensors; `expected` gives the inferred shapes and dtypes.

    replica: run it as the only replica of a job, where a lowering uses collectives. platform: lower it as for this one,
    which need not be the one that runs it: so a test on the CPU meets what TPUs get.
    """
    context_platform = platform or jax.default_backend()
    name = func._schema.name + (f".{func._schema.overload_name}" if func._schema.overload_name else "")
    spec = TABLE[name]
    leaves = [leaf if isinstance(leaf, torch.Tensor) else None for leaf in tree_flatten(expected)[0]]
    out = tuple(None if leaf is None else jax.ShapeDtypeStruct(leaf.shape, natural_dtype(leaf.dtype)) for leaf in leaves)
    kwargs = {name: value for name, value in kwargs.items() if name not in _PLACEMENT}
    flat, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda x: x is None)
    with jax.enable_x64(True):
        arrays = [to_array(leaf) for leaf in flat if isinstance(leaf, torch.Tensor)]

        def run(arrays: list[jax.Array], key: jax.Array) -> list[jax.Array | None]:
            rest = iter(arrays)
            new_args, new_kwargs = jax.tree.unflatten(tree, [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat])
            result = spec.lower(Context(out, key if spec.random else None, platform=context_platform), *new_args, **new_kwargs)
            return list(result) if isinstance(result, (tuple, list)) else [result]

        first = jax.devices()[:1]
        function = Replicas(first[0], Mesh(first, (REPLICA_AXIS,)), attached(first)).spread(run) if replica else run
        results = jax.jit(function, compiler_options=compiler_options(jax.default_backend()))(arrays, np.array([seed or 0, 7], np.uint32))
    for got, inferred in zip(results, out, strict=True):
        if (got is None) != (inferred is None):
            raise AssertionError(f"{name}: returned {got}, inferred {inferred}")
        if got is not None and inferred is not None and (got.shape != inferred.shape or got.dtype != inferred.dtype):
            raise AssertionError(f"{name}: returned {got.dtype}{list(got.shape)}, inferred {inferred.dtype}{list(inferred.shape)}")
    return [None if result is None else to_tensor(result) for result in results]


def check_lowering(func: OpOverload, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any) -> None:
    """Assert that the lowering of `func` gives what CPU torch gives: values, shapes and dtypes (NaN equals NaN).

    kwargs: of the operation; `seed`, `replica` and `platform` are for `lower_once`.
    """
    own = {name: kwargs.pop(name) for name in ("seed", "replica", "platform") if name in kwargs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says of its own operation, such as that it is deprecated
        expected = func(*tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, args), **kwargs)
    got = lower_once(func, expected, *args, **own, **kwargs)
    for mine, theirs in zip(got, tree_flatten(expected)[0], strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(mine, theirs.resolve_conj().resolve_neg(), rtol=rtol, atol=atol, equal_nan=True)


def lower_as_for(platform: str, namespace: str) -> None:
    """Let a namespace's operations be lowered as for another platform, from now on and in this process: it runs what others get.

    platform: as `Context.platform`. namespace: of the operators, such as `my_package`, which must be registered already.
    """

    def there(lower: Callable[..., Any], context: Context, *args: Any, **kwargs: Any) -> Any:
        return lower(replace(context, platform=platform), *args, **kwargs)

    for name, spec in list(TABLE.items()):
        if name.startswith(f"{namespace}::"):
            TABLE[name] = replace(spec, lower=partial(there, spec.lower))

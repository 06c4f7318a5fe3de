"""`assume_pure`: records a function once for each kind of arguments, and then runs it as one operation."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import torch

from xla_core.base.private_torch import TreeSpec, tree_flatten, tree_unflatten
from xla_core.engine.graph import rng
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.tensor.jax_call import call_jax
from xla_core.engine.tensor.plain import holder
from xla_core.engine.tracing.bodies import call_with, check_on_device
from xla_core.engine.tracing.surroundings import Cache, surroundings, with_fresh_seeds
from xla_core.features.control_flow.branches import Branches, branches, run

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class _Pure:
    """A recorded function. tree: the nesting of its results; constants: results that are not tensors, by index."""

    branches: Branches
    tree: TreeSpec
    constants: dict[int, Any]


_recordings = Cache[_Pure]()


def assume_pure(fn: _F, *, add_rng_seed_argument: bool = False) -> _F:
    """Record `fn` once for each set of shapes, dtypes and other arguments, and then put it into the graph as one operation.

    fn: its results depend on its arguments alone. Arguments may be nested; xla tensors among them are inputs, and other leaves are hashable
    and choose the recording. Gradients are torch's. A function that uses tensors from outside is recorded at each call.
    add_rng_seed_argument: the result takes a further keyword `rng_seed`, an integer, from which it derives its random numbers; otherwise
    they are drawn from the device's state at each call. Raises TypeError for an argument that cannot be hashed, RuntimeError for CPU
    tensors.
    """

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not add_rng_seed_argument:
            return _called(fn, args, kwargs, None)
        if "rng_seed" not in kwargs:
            raise TypeError(f"{_name(fn)} takes a keyword argument rng_seed, an integer: it was made with add_rng_seed_argument=True")
        seed = kwargs.pop("rng_seed")
        return _called(fn, args, kwargs, int(seed))

    return call  # type: ignore[return-value]


def _called(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rng_seed: int | None) -> Any:
    leaves, tree = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    check_on_device(_name(fn), tensors)
    constants = [None if isinstance(leaf, torch.Tensor) else (type(leaf), leaf) for leaf in leaves]
    for leaf in leaves:
        if not isinstance(leaf, Hashable):
            raise TypeError(f"{_name(fn)} cannot take a {type(leaf).__name__}: pass a tensor, or something that can be hashed")
    recorder = holder(tensors[0])._storage.value.recorder if tensors else current_recorder()
    kinds = tuple(
        (tuple(tensor.shape), tensor.dtype, tensor.requires_grad, holder(tensor)._storage.value.aval.manual) for tensor in tensors
    )
    key = (fn, tree, tuple(constants), kinds, surroundings(recorder))
    pure = _recordings.get(key)
    before = recorder.seed
    reused = pure is not None
    if pure is None:
        pure = _recorded(recorder, fn, leaves, tree, tensors)
        _recordings.keep(key, pure, *pure.branches.parts)
    draw = recorder.draw
    if rng_seed is not None:
        recorder.seed = before
        draw = rng.drawing_from(rng_seed)
    recorded = pure.branches
    if reused or rng_seed is not None:
        recorded = replace(recorded, parts=(with_fresh_seeds(recorded.parts[0], draw),))
    results = iter(run(recorder, recorded, None, tensors))
    flat = [pure.constants[index] if index in pure.constants else next(results) for index in range(pure.tree.num_leaves)]
    return tree_unflatten(flat, pure.tree)


def _recorded(recorder: Any, fn: Callable[..., Any], leaves: list[Any], tree: TreeSpec, tensors: list[torch.Tensor]) -> _Pure:
    seen: list[Any] = []

    def flat(values: list[Any]) -> list[Any]:
        remaining = iter(values)
        args, kwargs = tree_unflatten([next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], tree)
        results, nesting = tree_flatten(fn(*args, **kwargs))
        seen.append((nesting, {index: result for index, result in enumerate(results) if not isinstance(result, torch.Tensor)}))
        return [result for result in results if isinstance(result, torch.Tensor)]

    recorded = branches(recorder, _name(fn), [flat], tensors)
    [(nesting, constants)] = seen
    return _Pure(recorded, nesting, constants)


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


def assume_pure_torch(func: _F, use_cache: bool = False) -> _F:
    """`assume_pure(func)`. use_cache: accepted for compatibility; recordings are always kept."""
    return assume_pure(func)


def j2t_autograd(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of xla tensors that calls the JAX function `fn` on their arrays, with JAX's gradient."""

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return call_jax(fn, args, kwargs)

    return call


class PureModule(torch.nn.Module):
    """A module whose forward pass is recorded once for each kind of inputs: `assume_pure` for modules.

    module: writes to no buffer in its forward pass. The result has its parameters and buffers, which train as usual.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._module = module
        self._pure = assume_pure(self._forward)

    def _forward(
        self, training: tuple[bool, ...], params: dict[str, Any], buffers: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return call_with(self._module, {**params, **buffers}, args, kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result."""
        modes = tuple(module.training for module in self._module.modules())
        return self._pure(modes, dict(self._module.named_parameters()), dict(self._module.named_buffers()), args, kwargs)

"""Functions of tensors in any nesting, made of JAX functions and of builder functions, and specialized for each set of shapes."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import torch

from xla_core.base.private_torch import between_graphs, tree_flatten, tree_unflatten
from xla_core.engine.tensor.jax_call import call_jax
from xla_core.legacy.builder.op import Op, create_computation
from xla_core.legacy.builder.running import tensor_shape, user_computation

_TENSOR = object()  # stands for a tensor among the arguments


class FlattenedInputFunc:
    """A function of nested arguments, called with a flat list of tensors.

    `preprocess` remembers the nesting of the arguments for `flat_call`, which remembers the nesting of the results for `postprocess`.
    """

    def __init__(self, orig_func: Callable[..., Any]) -> None:
        self.orig_func = orig_func
        self.key: Any = None
        self._results: Any = None

    def flatten(self, inputs: Any) -> tuple[list[Any], Any]:
        """The leaves of a nesting, and the nesting without them."""
        leaves, spec = tree_flatten(inputs)
        return leaves, spec

    def unflatten(self, flattened: Sequence[Any], spec: Any) -> Any:
        """Nest the leaves again: the inverse of `flatten`."""
        return tree_unflatten(list(flattened), spec)

    def preprocess(self, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> list[torch.Tensor]:
        """The tensors among the arguments, in order. Raises TypeError for another argument that cannot be hashed."""
        leaves, spec = self.flatten((tuple(args), dict(kwargs or {})))
        for leaf in leaves:
            if not isinstance(leaf, Hashable):
                raise TypeError(f"a {type(leaf).__name__} cannot be a constant: pass it as an xla tensor, or close over it")
        self._constants = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._spec = spec
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        self.key = (
            shapes,
            tuple((type(leaf), leaf) for leaf in self._constants),
            spec if isinstance(spec, jax.tree_util.PyTreeDef) else repr(spec),
        )
        return tensors

    def flat_call(self, flat_input: Sequence[Any]) -> list[Any]:
        """Call the function with these tensors in the place of its own; return the leaves of its results."""
        tensors = iter(flat_input)
        leaves = [next(tensors) if leaf is _TENSOR else leaf for leaf in self._constants]
        args, kwargs = self.unflatten(leaves, self._spec)
        flat, self._results = self.flatten(self.orig_func(*args, **kwargs))
        return flat

    def postprocess(self, res_flattened: Sequence[Any]) -> Any:
        """The results, nested as the function returned them."""
        return self.unflatten(res_flattened, self._results)


class JaxFlattenedInputFunc(FlattenedInputFunc):
    """A `FlattenedInputFunc` whose nestings are JAX's pytrees."""

    def flatten(self, inputs: Any) -> tuple[list[Any], Any]:
        """The leaves of a nesting, and the nesting without them."""
        return jax.tree.flatten(inputs)

    def unflatten(self, flattened: Sequence[Any], spec: Any) -> Any:
        """Nest the leaves again: the inverse of `flatten`."""
        return jax.tree.unflatten(spec, flattened)


class CompiledCallableWithCache(abc.ABC):
    """A function that is specialized once for each set of shapes, dtypes, other arguments and nesting."""

    def __init__(self, flat_input_func: FlattenedInputFunc) -> None:
        self.flat_input_func = flat_input_func
        self._specialized: dict[Any, tuple[FlattenedInputFunc, Callable[..., Any]]] = {}

    @between_graphs
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = copy.copy(self.flat_input_func)  # by itself: threads may call this at the same time
        tensors = function.preprocess(args, kwargs)
        specialized = self._specialized.get(function.key)
        if specialized is None:
            maker = copy.copy(self)
            maker.flat_input_func = function
            specialized = self._specialized[function.key] = function, maker.specialize(tensors)
        function, run = specialized
        return function.postprocess(run(*tensors))

    @abc.abstractmethod
    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Callable[..., Sequence[torch.Tensor]]:
        """A function of flat tensors for arguments such as these, with which `flat_input_func` has been prepared."""


class JaxCallable(CompiledCallableWithCache):
    """A JAX function called on xla tensors; see `call_jax` for what it may be."""

    def __init__(self, jax_func: Callable[..., Any]) -> None:
        super().__init__(JaxFlattenedInputFunc(jax_func))

    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Callable[..., Sequence[torch.Tensor]]:
        """A function that records the JAX function."""
        function = self.flat_input_func
        name = getattr(function.orig_func, "__name__", None)

        def flat(*arrays: Any) -> list[Any]:
            return function.flat_call(arrays)

        return lambda *tensors: list(call_jax(flat, tensors, name=name))


class XlaCallable(CompiledCallableWithCache):
    """A function of builder operations (`Op`) called on xla tensors."""

    def __init__(self, xla_func: Callable[..., Any]) -> None:
        super().__init__(FlattenedInputFunc(xla_func))

    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Callable[..., Sequence[torch.Tensor]]:
        """A function that records the computation of the builder function."""
        function = self.flat_input_func
        name = str(getattr(function.orig_func, "__name__", "computation"))

        def build(*ops: Op) -> list[Any]:
            return function.flat_call(ops)

        computation = create_computation(name, build, [tensor_shape(tensor) for tensor in sample_flat_args])
        return lambda *tensors: user_computation(name, tensors, computation)

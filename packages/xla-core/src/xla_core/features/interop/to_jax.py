"""`to_jax`: makes a pure function of JAX arrays from a torch module or function over xla tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import jax
import numpy as np
import torch
from jax import lax

from xla_core.base import private_jax
from xla_core.base.dtypes import device_dtype, natural_dtype, torch_dtype
from xla_core.base.private_torch import tree_flatten, tree_unflatten
from xla_core.engine.graph.aval import Aval, aval_of
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.tensor.interop import buffer_of
from xla_core.engine.tensor.plain import holder
from xla_core.engine.tracing.bodies import call_with
from xla_core.engine.tracing.surroundings import surroundings
from xla_core.features.interop.recorded import Derivatives, RecordedFunction

_KEPT = 256
_ARRAY = object()  # marks an array among the arguments
_Arrays = dict[str, jax.Array]


class JaxModule(NamedTuple):
    """A torch module for JAX: `apply(parameters, buffers, *args, rng=None, **kwargs)` returns its result and new buffers.

    parameters, buffers: the module's present ones by name, each tied parameter once; jax arrays over the same memory.
    """

    apply: Callable[..., tuple[Any, _Arrays]]
    parameters: _Arrays
    buffers: _Arrays


@overload
def to_jax(torch_function: torch.nn.Module, *, derivatives: str = "torch") -> JaxModule: ...  # type: ignore[overload-overlap]  # is called
@overload
def to_jax(torch_function: Callable[..., Any], *, derivatives: str = "torch") -> Callable[..., Any]: ...
def to_jax(torch_function: Any, *, derivatives: str = "torch") -> JaxModule | Callable[..., Any]:
    """Make a pure JAX function from a torch module or function, for `jax.jit`, `grad`, `vmap`, `shard_map`, `checkpoint` and `scan`.

    For a module on device `xla`, returns `(apply, parameters, buffers)`, a `JaxModule`; `apply(parameters, buffers, *args, rng=None,
    **kwargs)` returns `(result, buffers)`, and does not change the module. For a function, returns one with the same arguments and `rng`.

    Arguments and results are nestings, with jax or NumPy arrays instead of tensors; other leaves are hashable constants. The torch code
    runs once for each set of shapes, dtypes, constants and training modes. While `jax_enable_x64` is off, torch sees int32 as int64, its
    dtype for indices, and results are cut to 32 bits; returned buffers keep their dtypes.
    rng: a JAX key, from which all random numbers of the call are derived; required if the code draws any.
    derivatives: "torch" for torch's autograd: first order, reverse mode, with custom functions, `detach` and `no_grad`; "jax" for JAX's
    derivatives of the lowerings, in every mode and order, where `jax.checkpoint` sees each operation and each `checkpoint_name`.

    Tensors from outside are constants of the function. A call raises GraphBreakError if the code reads a value, UnsupportedOperationError
    if it writes to an argument or cuts gradients that JAX would not, each with the line; ValueError for other names than the module's, and
    without `rng` where it is required; TypeError for a torch tensor, or a leaf that cannot be a constant.
    """
    whose = Derivatives(derivatives)
    if isinstance(torch_function, torch.nn.Module):
        for name, tensor in [*torch_function.named_parameters(), *torch_function.named_buffers()]:
            if tensor.device.type != "xla":
                raise ValueError(f"to_jax takes a module on device xla, and {name} is on {tensor.device}: call .to('xla') on it first")
        module = _Module(torch_function, whose)
        parameters = {name: buffer_of(tensor.detach()) for name, tensor in torch_function.named_parameters()}
        return JaxModule(module, parameters, {name: buffer_of(tensor) for name, tensor in torch_function.named_buffers()})
    if not callable(torch_function):
        raise TypeError(f"to_jax takes a torch module or a function of tensors, got a {type(torch_function).__name__}")
    return _JaxFunction(torch_function, whose)


@dataclass(frozen=True, slots=True)
class _Nested:
    """A recorded function with the nesting of its results. constants: results that are not tensors, by index."""

    recorded: RecordedFunction
    tree: Any
    constants: Mapping[int, Any]
    changed: tuple[str, ...]  # names of the buffers that follow the other results


class _Calls:
    """Keeps recordings by what they depend on, and calls them. Base class for modules and functions."""

    def __init__(self, name: str, derivatives: Derivatives) -> None:
        self.name = name
        self._derivatives = derivatives
        self._recordings: dict[Any, _Nested] = {}

    def run(
        self,
        state: Sequence[tuple[str, Any, torch.Tensor, bool]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        rng: Any,
        call: Callable[[dict[str, Any], tuple[Any, ...], dict[str, Any]], tuple[Any, dict[str, Any]]],
        modes: tuple[Hashable, ...],
        enter: Callable[[], ExitStack],
    ) -> tuple[Any, _Arrays]:
        """The result and the changed buffers. state: for each tensor, name, array, the module's own tensor, and whether it is a buffer."""
        wide = bool(jax.dtypes.canonicalize_dtype(np.int64) == np.int64)
        leaves, tree = jax.tree.flatten((args, kwargs))
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                raise TypeError(f"{self.name} was made by to_jax and takes jax arrays, got a torch tensor: give it buffer_of(tensor)")
            if not _is_array(leaf) and not isinstance(leaf, Hashable):
                raise TypeError(f"{self.name} cannot take a {type(leaf).__name__} as a constant: pass an array, or what can be hashed")
        arrays = [array for _, array, _, _ in state] + [leaf for leaf in leaves if _is_array(leaf)]
        constants = tuple(_ARRAY if _is_array(leaf) else leaf for leaf in leaves)
        avals = [_aval_of_state(array, own, wide) for _, array, own, _ in state]
        avals += [_aval(array, wide) for array in arrays[len(state) :]]
        kinds = tuple((type(leaf), leaf) for leaf in constants)
        key = (tree, kinds, tuple(avals), tuple(name for name, *_ in state), modes, surroundings(current_recorder()))
        nested = self._recordings.get(key)
        if nested is None:
            nested = self._record(state, avals, constants, tree, call, enter)
            if nested.recorded.is_closed:
                if len(self._recordings) >= _KEPT:
                    self._recordings.clear()
                self._recordings[key] = nested
        if rng is None and nested.recorded.is_random:
            line = nested.recorded.first_random_line
            raise ValueError(f"{self.name} draws random numbers{f' at {line}' if line else ''}: pass rng=jax.random.key(…)")
        return self._evaluated(nested, arrays, rng, wide)

    def _record(
        self,
        state: Sequence[tuple[str, Any, torch.Tensor, bool]],
        avals: Sequence[Aval],
        constants: tuple[Any, ...],
        tree: Any,
        call: Callable[[dict[str, Any], tuple[Any, ...], dict[str, Any]], tuple[Any, dict[str, Any]]],
        enter: Callable[[], ExitStack],
    ) -> _Nested:
        seen: list[Any] = []

        def flat(values: list[Any]) -> list[Any]:
            remaining = iter(values)
            # The function may write to buffers: a copy is not an argument.
            own = {name: next(remaining).clone() if is_buffer else next(remaining) for name, _, _, is_buffer in state}
            before = {name: holder(own[name])._storage.value for name, _, _, is_buffer in state if is_buffer}
            args, kwargs = jax.tree.unflatten(tree, [next(remaining) if leaf is _ARRAY else leaf for leaf in constants])
            result, buffers = call(own, args, kwargs)
            changed = {name: buffer for name, buffer in buffers.items() if buffer is not own[name] or _written(buffer, before[name])}
            results, nesting = tree_flatten(result)
            seen.append(
                (nesting, {index: item for index, item in enumerate(results) if not isinstance(item, torch.Tensor)}, tuple(changed))
            )
            return [*[item for item in results if isinstance(item, torch.Tensor)], *changed.values()]

        wanted = tuple(not is_buffer for *_, is_buffer in state) + (True,) * (len(avals) - len(state))
        differentiable = tuple(needed and not aval.integral for needed, aval in zip(wanted, avals, strict=True))
        recorded = RecordedFunction(self.name, flat, tuple(avals), differentiable, self._derivatives, enter)
        recorded.forward  # noqa: B018  this property records
        return _Nested(recorded, *seen[0])

    def _evaluated(self, nested: _Nested, arrays: list[Any], rng: Any, wide: bool) -> tuple[Any, _Arrays]:
        recorded = nested.recorded
        with jax.enable_x64(True):
            random_state = np.zeros(2, np.uint32) if rng is None else jax.random.bits(rng, (2,), np.uint32)
            arguments = [lax.convert_element_type(array, aval.physical) for array, aval in zip(arrays, recorded.avals, strict=True)]
            *arguments, random_state = _varying_alike([*arguments, lax.convert_element_type(random_state, np.uint32)])
            results = recorded(arguments, random_state)
            if not wide:
                count = len(results) - len(nested.changed)
                results = [
                    *[lax.convert_element_type(result, _NARROW.get(result.dtype, result.dtype)) for result in results[:count]],
                    *results[count:],
                ]
        remaining = iter(results)
        leaves = [nested.constants[index] if index in nested.constants else next(remaining) for index in range(nested.tree.num_leaves)]
        return tree_unflatten(leaves, nested.tree), dict(zip(nested.changed, remaining, strict=True))


_NARROW = {
    np.dtype(wide): np.dtype(narrow)
    for wide, narrow in (("int64", "int32"), ("uint64", "uint32"), ("float64", "float32"), ("complex128", "complex64"))
}


class _JaxFunction(_Calls):
    """A torch function over JAX arrays."""

    def __init__(self, function: Callable[..., Any], derivatives: Derivatives) -> None:
        super().__init__(str(getattr(function, "__name__", type(function).__name__)), derivatives)
        self._function = function

    def __call__(self, *args: Any, rng: Any = None, **kwargs: Any) -> Any:
        """The function's result over arrays."""

        def call(_: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return self._function(*args, **kwargs), {}

        return self.run((), args, kwargs, rng, call, (), ExitStack)[0]


class _Module(_Calls):
    """A torch module as a function of its parameters and buffers, over JAX arrays."""

    def __init__(self, module: torch.nn.Module, derivatives: Derivatives) -> None:
        super().__init__(type(module).__name__, derivatives)
        self._module = module

    def __call__(self, parameters: Mapping[str, Any], buffers: Mapping[str, Any], *args: Any, rng: Any = None, **kwargs: Any) -> Any:
        """The module's result over arrays, and its buffers after the call."""
        own: list[tuple[Mapping[str, torch.Tensor], Mapping[str, Any], bool]] = [
            (dict(self._module.named_parameters()), parameters, False),
            (dict(self._module.named_buffers()), buffers, True),
        ]
        for tensors, arrays, is_buffer in own:
            if set(tensors) != set(arrays):
                noun, missing, more = "buffers" if is_buffer else "parameters", set(tensors) - set(arrays), set(arrays) - set(tensors)
                raise ValueError(f"{self.name} takes {noun} by name as to_jax gave them; missing {sorted(missing)}, unknown {sorted(more)}")
        state = [(name, arrays[name], tensor, is_buffer) for tensors, arrays, is_buffer in own for name, tensor in tensors.items()]
        modes = tuple(module.training for module in self._module.modules())

        def call(tensors: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            result = call_with(self._module, tensors, args, kwargs)
            return result, {name: tensor for name, tensor in self._module.named_buffers() if name in buffers}

        def enter() -> ExitStack:
            stack = ExitStack()
            stack.enter_context(_in_modes(self._module, modes))
            return stack

        result, changed = self.run(state, args, kwargs, rng, call, modes, enter)
        with jax.enable_x64(True):
            changed = {name: lax.convert_element_type(array, buffers[name].dtype) for name, array in changed.items()}
        return result, {**buffers, **changed}


@contextmanager
def _in_modes(module: torch.nn.Module, modes: tuple[bool, ...]) -> Iterator[None]:
    """Set each module's training mode as it was at the call, since a gradient is recorded when it is first needed."""
    modules = list(module.modules())
    before = [submodule.training for submodule in modules]
    for submodule, mode in zip(modules, modes, strict=True):
        submodule.training = mode
    try:
        yield
    finally:
        for submodule, mode in zip(modules, before, strict=True):
            submodule.training = mode


def _written(tensor: torch.Tensor, value: Any) -> bool:
    return holder(tensor)._storage.value is not value


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def _aval(array: Any, wide: bool) -> Aval:
    """The aval of the tensor that stands for an array."""
    logical = torch_dtype(array.dtype)
    return aval_of(tuple(array.shape), torch.int64 if logical == torch.int32 and not wide else logical)


def _aval_of_state(array: Any, own: torch.Tensor, wide: bool) -> Aval:
    """Like `_aval`, but in the dtype of the module's tensor if the array has its dtype on the device or in JAX."""
    natural = natural_dtype(own.dtype)
    holds = {device_dtype(own.dtype), natural if wide else _NARROW.get(natural, natural)}
    return aval_of(tuple(array.shape), own.dtype) if np.dtype(array.dtype) in holds else _aval(array, wide)


def _varying_alike(arrays: list[Any]) -> list[Any]:
    """Inside of `shard_map`, let all arrays vary over the same mesh axes, so that results of lowerings and gradients do too."""
    axes = [private_jax.varying_axes(array) for array in arrays]
    union = frozenset().union(*axes)
    return [
        lax.pcast(array, tuple(sorted(union - own)), to="varying") if union - own else array
        for array, own in zip(arrays, axes, strict=True)
    ]

"""A user's JAX function as one recorded operation, with the gradient that JAX gives it."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import jax
import numpy as np
import torch
from jax.export import Exported
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from xla_core.base import metrics
from xla_core.base.dtypes import torch_dtype
from xla_core.base.private_torch import between_graphs, is_transformed
from xla_core.engine.graph.aval import Aval, aval_of
from xla_core.engine.graph.signature import PLACEHOLDER, Signature
from xla_core.engine.runtime.client import current_recorder, placement_of
from xla_core.engine.runtime.pending_limit import relieve
from xla_core.engine.runtime.source_location import user_line
from xla_core.engine.tensor.encode import recorder_among, remember, two_devices
from xla_core.engine.tensor.observing import wrapped
from xla_core.engine.tensor.plain import holder, holder_of, mixed
from xla_core.engine.tensor.record import define
from xla_core.engine.tensor.tensor import wrap
from xla_core.engine.tensor.values import value_of
from xla_core.ops.compiled_for import compiled_for
from xla_core.ops.table import Context

_OPERAND = object()  # stands for a tensor among the arguments


@dataclass(frozen=True, slots=True)
class _JaxCall:
    """The user's function as one of arrays alone: with its constant arguments, and the nesting of all arguments.

    identity: equal for calls of the same function; the function itself, or the user's `override_hash`.
    """

    identity: Hashable
    name: str
    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    tree: Any

    def __call__(self, *arrays: Any) -> Any:
        operands = iter(arrays)
        args, kwargs = jax.tree.unflatten(self.tree, [next(operands) if leaf is _OPERAND else leaf for leaf in self.leaves])
        return self.function(*args, **kwargs)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal calls; constants of different types differ."""
        return (self.identity, self.tree, tuple((type(leaf), leaf) for leaf in self.leaves))


@dataclass(frozen=True, slots=True)
class _Traced:
    """A call traced for operands of certain shapes and dtypes. tree: the nesting of its results."""

    signature: Signature
    tree: Any


_traced: dict[Any, _Traced] = {}
# The settings of jax that change what a function is traced to, beside the width of its numbers.
_SETTINGS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
)
_signatures: dict[str, Signature] = {}
_ADDRESS = re.compile(" at 0x[0-9a-fA-FX]+")
_nameless = count()  # programs that hold a Python object which their text cannot name, such as a callback


@between_graphs
def call_jax(
    jax_func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    name: str | None = None,
    override_hash: Hashable = None,
) -> Any:
    """Record `jax_func(*args, **kwargs)` as one operation of the graph; the results are tensors in the function's own nesting.

    jax_func: pure; called with jax arrays in the place of xla tensors, once for each set of shapes, dtypes and other arguments.
        Make it once and pass the same object: a new lambda is traced at every call. 64-bit arrays stay what they are; arrays that
        the function makes are 32-bit unless an operand has 64 bits or `jax_enable_x64` is set.
    args, kwargs: nested tuples, lists and dicts. Other arguments than tensors must be hashable, and are constants of the program.
    name: how the operation is called in graphs and errors; the function's own name if left out.
    override_hash: identifies the function where it is another object at each call.

    Gradients of floating-point tensors are those of `jax.vjp`, through `torch.autograd`; the transforms of `torch.func` are those of JAX.
    `torch.compile` breaks its graph here. Raises RuntimeError for a tensor on another device, TypeError for an argument that cannot be a
    constant, and whatever the function raises.
    """
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs or {})))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if holder_of(leaf) is None and not is_transformed(leaf):
                raise mixed(leaf)
        elif not isinstance(leaf, Hashable):
            raise TypeError(f"call_jax cannot take a {type(leaf).__name__} as a constant: pass it as an xla tensor, or close over it")
    constants = tuple(_OPERAND if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    identity = jax_func if override_hash is None else override_hash
    call = _JaxCall(identity, name or str(getattr(jax_func, "__name__", "function")), jax_func, constants, tree)
    metrics.counter_add("xla::call_jax")
    return _called(call, tensors)


def traced_functions() -> int:
    """The number of traces that `call_jax` keeps: one for each function, shapes, constants and settings."""
    return len(_traced)


def _called(call: _JaxCall, tensors: list[Any]) -> Any:
    traced = _trace(call, tensors)
    if any(map(is_transformed, tensors)):
        results = list(_Transformed.apply(call, *tensors))  # type: ignore[no-untyped-call]
    elif torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        results = list(_Differentiable.apply(call, traced, *tensors))  # type: ignore[no-untyped-call]
    else:
        results = _record(traced.signature, tensors)
    return jax.tree.unflatten(traced.tree, results)


def _trace(call: _JaxCall, tensors: Sequence[Any]) -> _Traced:
    avals = tuple(aval_of(tuple(tensor.shape), tensor.dtype, _is_manual(tensor)) for tensor in tensors)
    x64 = bool(jax.dtypes.canonicalize_dtype(np.int64) == np.int64)
    program = placement_of(current_recorder()).context
    key = (call.key, avals, x64, program.model, *[getattr(jax.config, name) for name in _SETTINGS])
    traced = _traced.get(key)
    if traced is None:
        wide = x64 or any(aval.physical.itemsize >= (16 if aval.dtype.is_complex else 8) for aval in avals)
        with jax.enable_x64(wide), compiled_for(program.platform, program.model):
            closed, shapes = jax.make_jaxpr(call, return_shape=True)(*[aval.struct for aval in avals])
        results, tree = jax.tree.flatten(shapes)
        inferred = tuple(_result(struct, avals) for struct in results)
        traced = _Traced(_signature(call.name, closed, avals, inferred, program), tree)
        traced = remember(_traced, key, traced)
    return traced


def _is_manual(tensor: Any) -> bool:
    behind = holder_of(tensor)
    return behind is not None and behind._storage.value.aval.manual


def _result(struct: Any, avals: tuple[Aval, ...]) -> Aval:
    """The torch aval of a result. A device dtype in which an operand of another torch dtype is stored stands for that dtype here, too."""
    natural = torch_dtype(np.dtype(struct.dtype))
    dtype = next((aval.dtype for aval in avals if aval.physical == struct.dtype and aval.dtype != natural), None)
    return aval_of(tuple(struct.shape), natural if dtype is None else dtype, any(aval.manual for aval in avals))


def _signature(name: str, closed: Any, avals: tuple[Aval, ...], inferred: tuple[Aval, ...], program: Context) -> Signature:
    """The signature of a traced function; the same one for the same program, so that tracing again compiles nothing."""
    written = str(closed.jaxpr)
    digest = hashlib.sha256(f"{written}{avals}{inferred}{program.model}".encode())
    for content in _unwritten(closed):
        digest.update(content)
    if _ADDRESS.search(written):
        digest.update(str(next(_nameless)).encode())
    text = f"jax.{name}.{digest.hexdigest()[:32]}"
    signature = _signatures.get(text)
    if signature is None:
        run = jaxpr_as_fun(closed)

        def lower(context: Context, *arrays: Any) -> list[Any]:
            return [jax.numpy.asarray(array, out.dtype) for array, out in zip(run(*arrays), context.out, strict=True) if out is not None]

        signature = Signature(text, lower, (PLACEHOLDER,) * len(avals), {}, inferred, line=user_line(), pack=_listed)
        signature = remember(_signatures, text, signature)
    return signature


def _unwritten(part: Any) -> Iterator[bytes]:
    """The parts of a jaxpr that its text leaves out: arrays that it and the functions inside hold, and exported modules."""
    if isinstance(part, (ClosedJaxpr, Jaxpr)):  # from jax 0.12 on one class, whose arrays may be none
        yield from _unwritten(getattr(part, "consts", []))
        yield from _unwritten([value for equation in part.eqns for value in equation.params.values()])
    elif isinstance(part, (tuple, list)):
        for item in part:
            yield from _unwritten(item)
    elif isinstance(part, Mapping):
        yield from _unwritten(list(part.values()))
    elif isinstance(part, Exported):
        yield bytes(part.mlir_module_serialized)
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):  # such as the blocks of a Pallas kernel
        values = [getattr(part, field.name) for field in dataclasses.fields(part)]
        yield _ADDRESS.sub(" at ", repr(values)).encode()
        yield from _unwritten(values)
    elif isinstance(part, (np.ndarray, jax.Array)):
        random = isinstance(part, jax.Array) and jax.numpy.issubdtype(part.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(part) if random else part)
        yield f"{part.dtype}{array.shape}".encode() + array.tobytes()


def _listed(values: list[Any]) -> list[torch.Tensor]:
    return [wrap(value) for value in values]


def _record(signature: Signature, tensors: Sequence[Any]) -> list[torch.Tensor]:
    results: list[torch.Tensor] = wrapped(lambda tensors, _: _recorded(signature, tensors))(tuple(tensors), {})
    return results


def _recorded(signature: Signature, tensors: Sequence[Any]) -> list[torch.Tensor]:
    recorder = recorder_among(tensors) or current_recorder()
    with recorder.lock:
        values = [value_of(holder(tensor)) for tensor in tensors]
        for value in values:
            if value.recorder is not recorder:
                raise two_devices(recorder, value.recorder)
        pending_graph = recorder.pending_graph
        results = [
            value
            for value in define(recorder, pending_graph, signature, [None, *[pending_graph.adopt(value) for value in values]])
            if value is not None
        ]
    if len(pending_graph.entries) > pending_graph.limit:
        relieve(recorder, results)
    return _listed(results)


def _is_inexact(dtype: Any) -> bool:
    return bool(np.issubdtype(dtype, np.inexact)) or np.dtype(dtype).kind == "V"  # bfloat16 and float8 have NumPy's kind of void


class _Differentiable(torch.autograd.Function):
    """The recorded call with JAX's gradient. XLA merges what the backward pass computes again with the forward pass."""

    @staticmethod
    def forward(ctx: Any, call: _JaxCall, traced: _Traced, *tensors: torch.Tensor) -> Any:
        ctx.call = call
        ctx.save_for_backward(*tensors)
        results = _record(traced.signature, tensors)
        ctx.mark_non_differentiable(*[result for result in results if not _may_have_gradient(result)])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        return None, None, *_gradients(ctx.call, ctx.saved_tensors, ctx.needs_input_grad[2:], cotangents)


class _Transformed(torch.autograd.Function):
    """The call over tensors that transforms of `torch.func` wrap: each becomes the transform of JAX over the call inside."""

    @staticmethod
    def forward(call: _JaxCall, *tensors: torch.Tensor) -> Any:
        return tuple(jax.tree.leaves(_called(call, list(tensors))))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.mark_non_differentiable(*[result for result in output if not _may_have_gradient(result)])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        return None, *_gradients(ctx.call, ctx.saved_tensors, ctx.needs_input_grad[1:], cotangents)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor | None) -> Any:
        tensors = ctx.saved_tensors
        moved = tuple(index for index, tangent in enumerate(tangents) if tangent is not None)
        push = _Changed("jvp", ctx.call, moved, _jvp)
        pushed = iter(_flat_call(push, (*tensors, *[tangent for tangent in tangents if tangent is not None])))
        shapes = jax.tree.leaves(_called(ctx.call, list(tensors)))
        return tuple(next(pushed) if _may_have_gradient(result) else None for result in shapes)

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: _JaxCall, *tensors: torch.Tensor) -> Any:
        results = tuple(_flat_call(_Changed("vmap", call, tuple(in_dims[1:]), _vmap), tensors))
        return results, (0,) * len(results)


def _may_have_gradient(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _gradients(call: _JaxCall, tensors: Sequence[Any], needed: Sequence[bool], cotangents: Sequence[torch.Tensor]) -> list[Any]:
    """The gradient of a call for each of its tensors; None where none is needed."""
    indices = tuple(index for index, needs in enumerate(needed) if needs)
    inexact = [cotangent for cotangent in cotangents if _may_have_gradient(cotangent)]
    operands = (*tensors, *[cotangent.conj().resolve_conj() if cotangent.dtype.is_complex else cotangent for cotangent in inexact])
    gradients = iter(_flat_call(_Changed("backward", call, indices, _pull), operands))
    grads = [next(gradients) if index in indices else None for index in range(len(tensors))]
    return [grad.conj().resolve_conj() if grad is not None and grad.dtype.is_complex else grad for grad in grads]


def _flat_call(changed: _Changed, operands: Sequence[Any]) -> list[Any]:
    leaves, tree = jax.tree.flatten((tuple(operands), {}))
    call = _JaxCall(changed, f"{changed.call.name}_{changed.name}", changed, (_OPERAND,) * len(leaves), tree)
    return list(_called(call, list(operands)))


@dataclass(frozen=True, slots=True)
class _Changed:
    """A call under a transform of JAX. places: the indices of the operands it is for; for vmap, the batch axis of each operand."""

    name: str
    call: _JaxCall
    places: tuple[int | None, ...]
    transform: Callable[[_Changed, tuple[Any, ...]], list[Any]]

    def __hash__(self) -> int:
        return hash((self.name, self.call.key, self.places))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Changed) and (self.name, self.call.key, self.places) == (other.name, other.call.key, other.places)

    def __call__(self, *arrays: Any) -> list[Any]:
        return self.transform(self, arrays)

    def leaves(self, *arrays: Any) -> list[Any]:
        """The results of the call itself, flattened."""
        return jax.tree.leaves(self.call(*arrays))

    def part(self, inputs: Sequence[Any]) -> Callable[..., list[Any]]:
        """The inexact results of the call as a function of the operands at `places` alone."""

        def run(*chosen: Any) -> list[Any]:
            arrays = list(inputs)
            for index, array in zip(self.places, chosen, strict=True):
                arrays[cast(int, index)] = array
            return [result for result in self.leaves(*arrays) if _is_inexact(result.dtype)]

        return run


def _pull(changed: _Changed, arrays: tuple[Any, ...]) -> list[Any]:
    """The gradients of the call's operands at `places`. arrays: all its operands, then cotangents of its inexact results."""
    operands = sum(leaf is _OPERAND for leaf in changed.call.leaves)
    inputs, cotangents = arrays[:operands], arrays[operands:]
    _, pull = jax.vjp(changed.part(inputs), *[inputs[cast(int, index)] for index in changed.places])
    return list(pull(list(cotangents)))


def _jvp(changed: _Changed, arrays: tuple[Any, ...]) -> list[Any]:
    """The tangents of inexact results. arrays: all operands, then tangents of those at `places`."""
    operands = sum(leaf is _OPERAND for leaf in changed.call.leaves)
    inputs, tangents = arrays[:operands], arrays[operands:]
    return list(jax.jvp(changed.part(inputs), [inputs[cast(int, index)] for index in changed.places], list(tangents))[1])


def _vmap(changed: _Changed, arrays: tuple[Any, ...]) -> list[Any]:
    """The results, with their batch first. places: the axis of each operand's batch."""
    return list(jax.vmap(changed.leaves, in_axes=changed.places)(*arrays))

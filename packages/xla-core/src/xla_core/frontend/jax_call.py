"""A user's JAX function as one recorded operation, with the gradient that JAX gives it."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import jax
import numpy as np
import torch
from jax.export import Exported
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from xla_core import metrics
from xla_core._compat import between_graphs
from xla_core.dtypes import torch_dtype
from xla_core.frontend.encode import recorder_among, remember, two_devices
from xla_core.frontend.observing import wrapped
from xla_core.frontend.plain import holder, holder_of, mixed
from xla_core.frontend.record import define
from xla_core.frontend.tensor import wrap
from xla_core.frontend.values import value_of
from xla_core.ir.aval import Aval, aval_of
from xla_core.ir.signature import PLACEHOLDER, Signature
from xla_core.ops.table import Context
from xla_core.runtime.client import current_recorder
from xla_core.runtime.pending_limit import relieve
from xla_core.runtime.source_location import user_line

_OPERAND = object()  # stands for a tensor among the arguments


@dataclass(frozen=True, slots=True)
class _Call:
    """A function of arrays alone: the user's, with its other arguments and the nesting of all of them.

    identity: what says that two calls are the same program; the function itself, or what the user put in its place.
    """

    identity: Hashable
    name: str
    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    tree: Any

    def __call__(self, *arrays: Any) -> Any:
        rest = iter(arrays)
        args, kwargs = jax.tree.unflatten(self.tree, [next(rest) if leaf is _OPERAND else leaf for leaf in self.leaves])
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
# The settings of jax that decide what a function is traced to, beside the width of its numbers.
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

    jax_func: pure; called with jax arrays in the place of xla tensors, when such shapes, dtypes and other arguments are new to it.
        Make it once and pass the same object: a new lambda is traced at every call. 64-bit arrays stay what they are; what the
        function makes itself is 32-bit unless an operand has 64 bits or `jax_enable_x64` is set.
    args, kwargs: nested tuples, lists and dicts. What is no tensor must be hashable and is a constant of the program.
    name: how the operation is called in graphs and errors; the function's own name if left out.
    override_hash: stands for the function where that is another object at each call.

    Gradients of floating-point tensors are those of `jax.vjp`, through `torch.autograd`. `torch.compile` breaks its graph here. Raises
    RuntimeError for a tensor on another device, TypeError for an argument that cannot be a constant, and whatever the function raises.
    """
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs or {})))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if holder_of(leaf) is None:
                raise mixed(leaf)
        elif not isinstance(leaf, Hashable):
            raise TypeError(f"call_jax cannot take a {type(leaf).__name__} as a constant: pass it as an xla tensor, or close over it")
    constants = tuple(_OPERAND if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    identity = jax_func if override_hash is None else override_hash
    call = _Call(identity, name or str(getattr(jax_func, "__name__", "function")), jax_func, constants, tree)
    metrics.counter_add("xla::call_jax")
    return _called(call, tensors)


def traced_functions() -> int:
    """How many functions `call_jax` keeps traced, those of different shapes, constants or settings counted apart."""
    return len(_traced)


def _called(call: _Call, tensors: list[Any]) -> Any:
    traced = _trace(call, tensors)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        results = list(_Differentiable.apply(call, traced, *tensors))  # type: ignore[no-untyped-call]
    else:
        results = _record(traced.signature, tensors)
    return jax.tree.unflatten(traced.tree, results)


def _trace(call: _Call, tensors: Sequence[Any]) -> _Traced:
    avals = tuple(aval_of(tuple(tensor.shape), tensor.dtype, holder(tensor)._storage.value.aval.manual) for tensor in tensors)
    users = bool(jax.dtypes.canonicalize_dtype(np.int64) == np.int64)
    key = (call.key, avals, users, *[getattr(jax.config, name) for name in _SETTINGS])
    found = _traced.get(key)
    if found is None:
        wide = users or any(aval.physical.itemsize >= (16 if aval.dtype.is_complex else 8) for aval in avals)
        with jax.enable_x64(wide):
            closed, shapes = jax.make_jaxpr(call, return_shape=True)(*[aval.struct for aval in avals])
        results, tree = jax.tree.flatten(shapes)
        inferred = tuple(_result(one, avals) for one in results)
        found = _Traced(_signature(call.name, closed, avals, inferred), tree)
        found = remember(_traced, key, found)
    return found


def _result(struct: Any, avals: tuple[Aval, ...]) -> Aval:
    """The torch aval of a result: where the device computes in another dtype, that of an operand which is held in it."""
    natural = torch_dtype(np.dtype(struct.dtype))
    held = next((aval.dtype for aval in avals if aval.physical == struct.dtype and aval.dtype != natural), None)
    return aval_of(tuple(struct.shape), natural if held is None else held, any(aval.manual for aval in avals))


def _signature(name: str, closed: Any, avals: tuple[Aval, ...], inferred: tuple[Aval, ...]) -> Signature:
    """The signature of a traced function; the same one for the same program, so that tracing again compiles nothing."""
    written = str(closed.jaxpr)
    digest = hashlib.sha256(f"{written}{avals}{inferred}".encode())
    for content in _unwritten(closed):
        digest.update(content)
    if _ADDRESS.search(written):
        digest.update(str(next(_nameless)).encode())
    text = f"jax.{name}.{digest.hexdigest()[:32]}"
    found = _signatures.get(text)
    if found is None:
        run = jaxpr_as_fun(closed)

        def lower(context: Context, *arrays: Any) -> list[Any]:
            return [jax.numpy.asarray(one, out.dtype) for one, out in zip(run(*arrays), context.out, strict=True) if out is not None]

        found = Signature(text, lower, (PLACEHOLDER,) * len(avals), {}, inferred, line=user_line(), pack=_listed)
        found = remember(_signatures, text, found)
    return found


def _unwritten(part: Any) -> Iterator[bytes]:
    """What the text of a jaxpr leaves out: the arrays that it and the functions inside hold, and exported modules."""
    if isinstance(part, ClosedJaxpr):
        yield from _unwritten([part.consts, part.jaxpr])
    elif isinstance(part, Jaxpr):
        yield from _unwritten([value for equation in part.eqns for value in equation.params.values()])
    elif isinstance(part, (tuple, list)):
        for item in part:
            yield from _unwritten(item)
    elif isinstance(part, Mapping):
        yield from _unwritten(list(part.values()))
    elif isinstance(part, Exported):
        yield bytes(part.mlir_module_serialized)
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):  # such as the blocks of a Pallas kernel
        held = [getattr(part, field.name) for field in dataclasses.fields(part)]
        yield _ADDRESS.sub(" at ", repr(held)).encode()
        yield from _unwritten(held)
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
        made = [
            value
            for value in define(recorder, pending_graph, signature, [None, *[pending_graph.adopt(value) for value in values]])
            if value is not None
        ]
    if len(pending_graph.entries) > pending_graph.limit:
        relieve(recorder, made)
    return _listed(made)


def _is_inexact(dtype: Any) -> bool:
    return bool(np.issubdtype(dtype, np.inexact)) or np.dtype(dtype).kind == "V"  # bfloat16 and float8 have NumPy's kind of void


class _Differentiable(torch.autograd.Function):
    """The recorded call with the gradient that JAX gives it; what the backward pass computes again, XLA finds and shares."""

    @staticmethod
    def forward(ctx: Any, call: _Call, traced: _Traced, *tensors: torch.Tensor) -> Any:
        ctx.call = call
        ctx.save_for_backward(*tensors)
        results = _record(traced.signature, tensors)
        ctx.mark_non_differentiable(*[one for one in results if not (one.dtype.is_floating_point or one.dtype.is_complex)])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        tensors = ctx.saved_tensors
        wanted = tuple(place for place, needed in enumerate(ctx.needs_input_grad[2:]) if needed)
        inexact = [one for one in cotangents if one.dtype.is_floating_point or one.dtype.is_complex]
        pullback = _Pullback(ctx.call, wanted, len(tensors))
        operands = (*tensors, *[one.conj().resolve_conj() if one.dtype.is_complex else one for one in inexact])
        leaves, tree = jax.tree.flatten((operands, {}))
        call = _Call(pullback, f"{ctx.call.name}_backward", pullback, (_OPERAND,) * len(leaves), tree)
        found = iter(_called(call, list(operands)))
        grads = [next(found) if place in wanted else None for place in range(len(tensors))]
        return None, None, *[grad.conj().resolve_conj() if grad is not None and grad.dtype.is_complex else grad for grad in grads]


@dataclass(frozen=True, slots=True)
class _Pullback:
    """The transposed derivative of a call for the operands at `wanted`: takes its operands, then cotangents of inexact results."""

    call: _Call
    wanted: tuple[int, ...]
    operands: int

    def __hash__(self) -> int:
        return hash((self.call.key, self.wanted, self.operands))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Pullback) and (self.call.key, self.wanted) == (other.call.key, other.wanted)

    def __call__(self, *arrays: Any) -> list[Any]:
        inputs, cotangents = list(arrays[: self.operands]), arrays[self.operands :]

        def part(*chosen: Any) -> list[Any]:
            for place, array in zip(self.wanted, chosen, strict=True):
                inputs[place] = array
            return [one for one in jax.tree.leaves(self.call(*inputs)) if _is_inexact(one.dtype)]

        _, pull = jax.vjp(part, *[inputs[place] for place in self.wanted])
        return list(pull(list(cotangents)))

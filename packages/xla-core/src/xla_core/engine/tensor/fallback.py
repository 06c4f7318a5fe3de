"""Operations without a lowering: read the inputs, run stock torch on the CPU, put the results back."""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch

from xla_core.base import config, metrics
from xla_core.base.config import FallbackPolicy
from xla_core.base.errors import DeviceMismatchError, FallbackError, UnsupportedOperationError
from xla_core.base.metrics import FallbackEvent
from xla_core.base.private_torch import OpOverload, as_called_by_user, tree_flatten, tree_map
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.runtime.client import current_recorder, placement_of
from xla_core.engine.runtime.source_location import user_line
from xla_core.engine.runtime.sync import compute
from xla_core.engine.runtime.transfer import upload
from xla_core.engine.tensor.data_dependent import refuse_planned
from xla_core.engine.tensor.not_dense import check_dense
from xla_core.engine.tensor.plain import mixed
from xla_core.engine.tensor.refusals import on_meta
from xla_core.engine.tensor.schema import calling, full_name, functional_of
from xla_core.engine.tensor.tensor import XLATensor, wrap
from xla_core.engine.tensor.values import cpu_copies, value_of
from xla_core.engine.tensor.writes import assign_from_cpu
from xla_core.ops.limits import LIMITS, Instead, limit_of

_warned: set[str] = set()


def run(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], recorder: Recorder | None = None) -> Any:
    """`func` by stock torch on the CPU. Raises FallbackError if `XLA_FALLBACK=error`, else what torch raises.

    recorder: where results go when no argument is an xla tensor.
    """
    start, begin = time.time(), time.perf_counter_ns()
    flat, _ = tree_flatten((args, kwargs))
    tensors = [item for item in flat if type(item) is XLATensor]
    target = _recorder_of(func, flat, tensors) or recorder or current_recorder()
    devices = placement_of(target).target
    why = _why(func, devices.platform, tensors)
    if config.FALLBACK.get() is FallbackPolicy.ERROR:
        raise FallbackError(
            f"{full_name(func)} {why} and XLA_FALLBACK=error forbids running it on the CPU: "
            "move its inputs with .cpu(), register a lowering with xla_core.abi.operators.register_op, or unset XLA_FALLBACK"
        )
    if torch.Tag.dynamic_output_shape in func.tags:
        refuse_planned(target, [value_of(tensor) for tensor in tensors])
    host_args, host_kwargs, results = _called(func, args, kwargs, tensors) if devices.attached else _planned(func, args, kwargs, tensors)
    outcome = _back(func, args, kwargs, host_args, host_kwargs, results, target)
    moved = [item for item in (*tensors, *tree_flatten(results)[0]) if isinstance(item, torch.Tensor)]
    _account(func, target, why, start, time.perf_counter_ns() - begin, sum(tensor.nbytes for tensor in moved))
    return outcome


def _recorder_of(func: OpOverload, flat: list[Any], tensors: list[XLATensor]) -> Recorder | None:
    """The recorder of the operands; None if there are none. Raises DeviceMismatchError for those of several devices."""
    # As recorded operations do; a user's own operation may want CPU operands.
    if tensors and func.namespace == "aten":
        for item in flat:
            if isinstance(item, torch.Tensor) and type(item) is not XLATensor and item.dim():
                raise mixed(item)
    recorders = {tensor._storage.value.recorder for tensor in tensors}
    if len(recorders) > 1:
        names = " and ".join(sorted(str(owner.device) for owner in recorders))
        raise DeviceMismatchError(f"Expected all tensors to be on the same device, but found at least two devices, {names}!")
    return next(iter(recorders), None)


def _why(func: OpOverload, platform: str, tensors: list[XLATensor]) -> str:
    """Why an operation does not run on the device, to follow its name."""
    row = functional_of(func) if platform in LIMITS else None
    dtypes = {tensor.dtype for tensor in tensors}
    limit = None if row is None else limit_of(platform, full_name(row), dtypes, dtypes)
    if limit is None or limit.instead is not Instead.ON_HOST:
        return "has no XLA lowering for these arguments"
    return f"cannot be compiled for {platform} ({limit.reason}; {limit.advice})"


def _called(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[XLATensor]
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """The arguments on the CPU, and what stock torch makes of them."""
    # By identity: an argument that is passed twice is one tensor on the CPU, too.
    copies = dict(zip(map(id, tensors), cpu_copies(tensors), strict=True))
    for argument in func._schema.arguments:
        out = kwargs.get(argument.name) if argument.is_out else None
        if type(out) is XLATensor:
            copies[id(out)] = copies[id(out)].clone()  # memory that torch can resize
        elif isinstance(out, torch.Tensor) and tensors:
            raise DeviceMismatchError(
                f"Expected all tensors to be on the same device, but {argument.name} is on {out.device} and an input on {tensors[0].device}"
            )

    def to_cpu(item: Any) -> Any:
        if isinstance(item, torch.device):
            return torch.device("cpu")
        return copies[id(item)] if type(item) is XLATensor else item

    on_cpu = {name: value for name, value in tree_map(to_cpu, kwargs).items()}
    if any(argument.name == "device" for argument in func._schema.arguments):
        on_cpu["device"] = torch.device("cpu")
    host_args = tree_map(to_cpu, args)
    try:
        with as_called_by_user():
            return host_args, on_cpu, func(*host_args, **on_cpu)
    except NotImplementedError as error:
        if not str(error).startswith(f"Could not run '{func._schema.name}'"):
            raise
        raise UnsupportedOperationError(
            f"{full_name(func)} has neither an XLA lowering nor a CPU kernel in torch: write it in other operations, or register a "
            "lowering with xla_core.abi.operators.register_op"
        ) from error


def _planned(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[XLATensor]
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """`_called` for devices that are not there: what the operands come from is compiled, and shapes stand for values where they can."""
    compute([value_of(tensor) for tensor in tensors])
    metas = {id(tensor): torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in tensors}

    def to_meta(item: Any) -> Any:
        return metas[id(item)] if type(item) is XLATensor else item

    try:
        results = on_meta(func, args, kwargs, to_meta)
    except Exception:  # torch has no meta function for it, or it gives numbers
        return _called(func, args, kwargs, tensors)
    return tree_map(to_meta, args), tree_map(to_meta, kwargs), results


def _back(
    func: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    host_args: tuple[Any, ...],
    host_kwargs: dict[str, Any],
    results: Any,
    target: Recorder,
) -> Any:
    """The results on the device. Mutated arguments are written back, and stand for themselves among the results."""
    names = [argument.name for argument in func._schema.arguments]
    same: dict[int, Any] = {}
    for name in calling(func).mutated:
        index = names.index(name)
        mine: Any = args[index] if index < len(args) else kwargs.get(name)
        theirs: Any = host_args[index] if index < len(host_args) else host_kwargs.get(name)
        pairs = zip(mine, theirs, strict=True) if isinstance(mine, (list, tuple)) else [(mine, theirs)]
        for tensor, host in pairs:
            if type(tensor) is XLATensor:
                assign_from_cpu(tensor, host)
                # The arguments of the call keep `host` alive, and with it its id.
                same[id(host)] = tensor

    def to_xla(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        check_dense(func, item)
        return same[id(item)] if id(item) in same else wrap(upload(item, target))

    return tree_map(to_xla, results)


def _account(func: OpOverload, recorder: Recorder, why: str, start_s: float, duration_ns: int, nbytes: int) -> None:
    name = full_name(func)
    metrics.counter_add(name if name.startswith("aten::") else f"aten::{name}" if "::" not in name else name)
    line = user_line()
    # A shape that depends on data is a value read that the user asked for, not a gap.
    if name not in _warned and torch.Tag.dynamic_output_shape not in func.tags:
        _warned.add(name)
        warnings.warn(
            f"{name} {why} and runs on the CPU (first at {line or 'an unknown line'}); results are right, but each call moves data",
            RuntimeWarning,
            stacklevel=4,
        )
    if metrics.has_subscribers(FallbackEvent):
        device = str(recorder.device)
        metrics.emit(FallbackEvent(device=device, start_s=start_s, duration_ns=duration_ns, line=line, operator=name, nbytes=nbytes))

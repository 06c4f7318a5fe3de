"""Trade memory for a second forward pass.

The recomputation must stay one: its inputs go through an optimization barrier, or the compiler would recognise the
first forward pass in it and keep those results alive instead. Random operations of the device draw the same numbers
again. Tensors that are not on an XLA device are treated as `torch.utils.checkpoint` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils import checkpoint as torch_checkpoint

from xla_core.base.private_torch import backward_is_whole, tree_flatten, tree_leaves, tree_unflatten
from xla_core.engine.runtime.client import current_recorder


def _model() -> Any:
    """The user's functions on devices; fetched late, so that importing this starts nothing."""
    from torch_xla.core import xla_model

    return xla_model


def _on_xla(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "xla"


def _in_body(value: Any) -> bool:
    """Whether a tensor belongs to the body of an operation that is recorded now."""
    return _on_xla(value) and current_recorder().pending_graph.is_body


def _behind_barrier(values: list[Any]) -> list[Any]:
    """The values with XLA tensors replaced by copies that the compiler cannot trace back to them, outside autograd.

    `requires_grad` is kept.
    """
    with torch.no_grad():
        copies = {id(value): value.detach().clone() for value in values if _on_xla(value)}
        # A loop and its gradient are two programs, which share nothing; XLA for CPUs cannot compile a barrier in a loop.
        if copies and not current_recorder().pending_graph.is_body:
            _model().optimization_barrier_(list(copies.values()))
    for value in values:
        if id(value) in copies:
            copies[id(value)].requires_grad_(value.requires_grad)
    return [copies.get(id(value), value) for value in values]


def get_device_states(*args: Any) -> tuple[list[torch.device], list[int]]:
    """The XLA devices that tensors among `args` are on, each once, and the random state of each, for `set_device_states`."""
    devices = list(dict.fromkeys(value.device for value in args if _on_xla(value)))
    return devices, [_model().get_rng_state(device) for device in devices]


def set_device_states(devices: Iterable[torch.device], states: Iterable[int]) -> None:
    """Give each device its random state. Raises: ValueError if there are more of one than of the other."""
    for device, state in zip(devices, states, strict=True):
        _model().set_rng_state(state, device)


class CheckpointStatus:
    """Whether a checkpointed function is being repeated: `in_chkpt_bwd`."""

    def __init__(self) -> None:
        self.in_chkpt_bwd = False


chkpt_status = CheckpointStatus()


@contextmanager
def _repeating() -> Iterator[None]:
    before, chkpt_status.in_chkpt_bwd = chkpt_status.in_chkpt_bwd, True
    try:
        yield
    finally:
        chkpt_status.in_chkpt_bwd = before


class _Surroundings:
    """Random states and autocast modes of a forward pass, restored when it is repeated."""

    def __init__(self, preserve_rng_state: bool, values: Iterable[Any]) -> None:
        self._cpu_state = torch.get_rng_state() if preserve_rng_state else None
        self._devices, self._states = get_device_states(*values) if preserve_rng_state else ([], [])
        self._autocast = [
            (device_type, torch.get_autocast_dtype(device_type), torch.is_autocast_enabled(device_type), torch.is_autocast_cache_enabled())
            for device_type in ("cpu", "xla")
            if torch.amp.is_autocast_available(device_type)
        ]

    @contextmanager
    def random(self) -> Iterator[None]:
        """Draw as the forward pass did; afterwards go on as if nothing had been drawn."""
        with ExitStack() as stack:
            if self._cpu_state is not None:
                stack.callback(torch.set_rng_state, torch.get_rng_state())
                torch.set_rng_state(self._cpu_state)
            for device in self._devices:
                stack.enter_context(_model().fork_rng(device))
            set_device_states(self._devices, self._states)
            yield

    @contextmanager
    def all(self) -> Iterator[None]:
        """`random`, and the autocast modes of the forward pass."""
        with ExitStack() as stack:
            stack.enter_context(self.random())
            for device_type, dtype, enabled, cached in self._autocast:
                # An unused mode may hold a dtype that its device would warn about.
                stack.enter_context(torch.autocast(device_type, dtype=dtype if enabled else None, enabled=enabled, cache_enabled=cached))
            yield


class CheckpointFunction(torch.autograd.Function):
    """The reentrant form: runs without a graph, and builds one in backward."""

    @staticmethod
    def _extract_tensors_from_list(inputs: Iterable[Any]) -> list[torch.Tensor]:
        """The tensors among `inputs`, in order."""
        return [value for value in inputs if isinstance(value, torch.Tensor)]

    @staticmethod
    def forward(ctx: Any, run_function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        """`run_function(*args)`, of which only the inputs are kept."""
        ctx.run_function = run_function
        ctx.surroundings = _Surroundings(preserve_rng_state, args)
        ctx.others = [None if isinstance(value, torch.Tensor) else value for value in args]
        ctx.tensor_indices = [index for index, value in enumerate(args) if isinstance(value, torch.Tensor)]
        ctx.save_for_backward(*CheckpointFunction._extract_tensors_from_list(args))
        with torch.no_grad():
            return run_function(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Repeat the function behind a barrier that also holds the incoming gradients, and go back through it."""
        if not backward_is_whole():
            raise RuntimeError(
                "checkpoint(use_reentrant=True) needs a backward() without `inputs`, and does not work with torch.autograd.grad; "
                "pass use_reentrant=False"
            )
        inputs = list(ctx.others)
        for index, tensor in zip(ctx.tensor_indices, ctx.saved_tensors, strict=True):
            inputs[index] = tensor
        # With the gradients in the same barrier, the repetition cannot start before they exist.
        barriered = _behind_barrier([*inputs, *grads])
        repeated = torch_checkpoint.detach_variable(tuple(barriered[: len(inputs)]))
        with _repeating(), ctx.surroundings.all(), torch.enable_grad():
            outputs = ctx.run_function(*repeated)
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
        pairs = [
            (output, grad)
            for output, grad in zip(outputs, barriered[len(inputs) :], strict=True)
            if isinstance(output, torch.Tensor) and output.requires_grad
        ]
        if not pairs:
            raise RuntimeError("no output of the checkpointed function requires a gradient: checkpoint() is not needed here")
        torch.autograd.backward([output for output, _ in pairs], [grad for _, grad in pairs])
        return (None, None, *(value.grad if isinstance(value, torch.Tensor) else None for value in repeated))


class _Repeatable:
    """A function whose second and later calls, the recomputations, run behind the barrier and with the same random numbers."""

    def __init__(self, function: Callable[..., Any], preserve_rng_state: bool, values: Iterable[Any]) -> None:
        self._function = function
        self._surroundings = _Surroundings(preserve_rng_state, values)
        self._has_run = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._has_run:
            self._has_run = True
            return self._function(*args, **kwargs)
        leaves, tree = tree_flatten((args, kwargs))
        args, kwargs = tree_unflatten(_behind_barrier(leaves), tree)
        with _repeating(), self._surroundings.random():  # torch restores autocast
            return self._function(*args, **kwargs)


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any) -> Any:
    """`function(*args)`, whose intermediate results are computed again in backward instead of kept.

    kwargs: `preserve_rng_state=True`, whether random operations repeat their numbers. With `use_reentrant=False` also
        what `torch.utils.checkpoint.checkpoint` takes, and keyword arguments of `function`.
    Raises: ValueError for other keywords with `use_reentrant=True`.
    """
    preserve_rng_state = kwargs.pop("preserve_rng_state", True)
    if use_reentrant and not kwargs and any(map(_in_body, args)):
        use_reentrant = False  # the body of a loop is parted from its gradient where the backward pass begins: no barrier need hold it back
    if not use_reentrant:
        repeatable = _Repeatable(function, preserve_rng_state, tree_leaves((args, kwargs)))
        return torch_checkpoint.checkpoint(repeatable, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
    if kwargs:
        raise ValueError(
            f"checkpoint(use_reentrant=True) does not take {', '.join(kwargs)}; pass use_reentrant=False for keyword arguments"
        )
    if torch.is_grad_enabled():  # off inside another checkpoint's forward pass, where nothing requires a gradient yet
        torch_checkpoint.check_backward_validity(args)
    return CheckpointFunction.apply(function, preserve_rng_state, *args)  # type: ignore[no-untyped-call]

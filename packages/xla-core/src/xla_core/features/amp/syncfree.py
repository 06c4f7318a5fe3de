"""SGD, Adam and AdamW that can skip an update without reading a value.

`step(found_inf=t)` leaves parameters, moments and step counters unchanged if `t` is not zero, which the device decides.
One `torch._foreach` operation serves all parameters at once, and parameters that started together share one
step counter, so that a step records few operations and the program has few inputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from xla_core.engine.tracing.numbers import log

Number = float | Tensor


class Gate:
    """Whether to apply a step on a device; without `found_inf`, always."""

    def __init__(self, found_inf: Tensor | None, device: torch.device) -> None:
        self._skip = None if found_inf is None else found_inf.detach().reshape(()).to(device) != 0
        self.count: Number = 1.0 if self._skip is None else (~self._skip).to(torch.float32)

    def clean(self, tensors: list[Tensor]) -> list[Tensor]:
        """The tensors, or zeros when skipping. Multiplying by zero would make NaN of infinity."""
        if self._skip is None:
            return tensors
        return [tensor.masked_fill(self._skip, 0.0) for tensor in tensors]

    def pick(self, normal: Number, skipped: float, like: Tensor) -> Number:
        """`normal`, or `skipped` when skipping. With `found_inf`, a 0-dim tensor of the dtype and device of `like`."""
        if self._skip is None:
            return normal
        value = normal.to(like) if isinstance(normal, Tensor) else torch.full_like(like, normal)
        return value.masked_fill(self._skip, skipped)


@dataclass(slots=True)
class Bucket:
    """Parameters of one group that share a step counter (and so a device)."""

    step: Tensor
    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)

    def real(self, tensors: list[Tensor]) -> list[Tensor]:
        """The tensors, with complex ones viewed as pairs of reals."""
        return [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in tensors]

    def column(self, key: str) -> list[Tensor]:
        """The entry `key` of every state."""
        return self.real([state[key] for state in self.states])

    def counter(self) -> Tensor:
        """The step counter in the dtype for bias corrections."""
        wide = any(param.dtype in (torch.float64, torch.complex128) for param in self.params)
        return self.step.to(torch.float64) if wide else self.step


def _new_counter(device: torch.device, value: float = 0.0) -> Tensor:
    return torch.full((), value, dtype=torch.float32, device=device)


def _rate(group: dict[str, Any], counter: Tensor) -> Number:
    """The learning rate; if it is a tensor, 0-dim and on the counter's device."""
    rate: Number = group["lr"]
    return rate.reshape(()).to(counter.device) if isinstance(rate, Tensor) else rate


def _add_scaled_(targets: list[Tensor], values: list[Tensor], scale: Number) -> None:
    """`target += scale * value` for each pair; a tensor `scale` must not be read back as a scalar."""
    if isinstance(scale, Tensor):
        torch._foreach_add_(targets, torch._foreach_mul(values, scale))
    else:
        torch._foreach_add_(targets, values, alpha=scale)


class _SyncFree(torch.optim.Optimizer):
    """Base class of the optimizers, with gates, buckets and counters."""

    def _lacks_state(self, group: dict[str, Any], state: dict[str, Any]) -> bool:
        return "step" not in state

    def _new_state(self, group: dict[str, Any], param: Tensor, state: dict[str, Any]) -> None:
        raise NotImplementedError

    def _counted(self, state: dict[str, Any]) -> Number | None:
        """The number of steps in a loaded state; None if there were none."""
        return state.get("step")

    def _update(self, group: dict[str, Any], bucket: Bucket, gate: Gate) -> None:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, found_inf: Tensor | None = None) -> Any:
        """Update the parameters once; the device skips that if `found_inf`, a scalar tensor, is not zero.

        Returns: the closure's result. Raises: ValueError if `found_inf` is not a scalar tensor.
        """
        if found_inf is not None and not (isinstance(found_inf, Tensor) and found_inf.numel() == 1):
            raise ValueError(f"found_inf must be a tensor with one element, got {found_inf!r}")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gates: dict[torch.device, Gate] = {}
        for group in self.param_groups:
            for bucket in self._buckets(group):
                device = bucket.step.device
                if device not in gates:
                    gates[device] = Gate(found_inf, device)
                bucket.step.add_(gates[device].count)
                self._update(group, bucket, gates[device])
        return loss

    def _buckets(self, group: dict[str, Any]) -> Iterator[Bucket]:
        """The parameters of `group` that have a gradient, with their state, by step counter."""
        fresh: dict[torch.device, Tensor] = {}
        buckets: dict[int, Bucket] = {}
        for param in group["params"]:
            if param.grad is None:
                continue
            if param.grad.layout is not torch.strided:
                raise RuntimeError(f"{type(self).__name__} does not take sparse gradients; call to_dense() on them first")
            state = self.state[param]
            if self._lacks_state(group, state):
                if param.device not in fresh:
                    fresh[param.device] = _new_counter(param.device)
                state["step"] = fresh[param.device]
                self._new_state(group, param, state)
            bucket = buckets.setdefault(id(state["step"]), Bucket(state["step"]))
            bucket.params.append(param)
            bucket.grads.append(param.grad)
            bucket.states.append(state)
        self._part_counters(group, buckets)
        yield from buckets.values()

    def _part_counters(self, group: dict[str, Any], buckets: dict[int, Bucket]) -> None:
        """Give a bucket its own counter if parameters without a gradient share it, because they make no step."""
        if sum(len(bucket.params) for bucket in buckets.values()) == len(group["params"]):
            return
        sharing = Counter(id(self.state[param]["step"]) for param in group["params"] if "step" in self.state.get(param, ()))
        for key, bucket in buckets.items():
            if sharing[key] > len(bucket.params):
                bucket.step = bucket.step.clone()
                for state in bucket.states:
                    state["step"] = bucket.step

    def state_dict(self) -> dict[str, Any]:
        """The state as in torch, with a copied counter for each parameter: torch's optimizers would advance a shared counter repeatedly."""
        packed = super().state_dict()
        states = {key: {**state, "step": state["step"].clone()} if "step" in state else state for key, state in packed["state"].items()}
        return {**packed, "state": states}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state, also for load_state_dict: move counters to the parameters' device, and share equal ones."""
        super().__setstate__(state)
        for group in self.param_groups:
            states = [(param.device, self.state[param]) for param in group["params"] if param in self.state]
            counted = [(device, state, count) for device, state in states if (count := self._counted(state)) is not None]
            by_id = {id(count): count for _, _, count in counted}
            if len(by_id) == 1 and isinstance(counted[0][2], Tensor) and counted[0][2].device == counted[0][0]:
                continue  # nothing to change, and no value to read
            values = _read(by_id)
            counters: dict[tuple[torch.device, float], Tensor] = {}
            for device, state, count in counted:
                key = (device, values[id(count)])
                if key not in counters:
                    counters[key] = _new_counter(*key)
                state["step"] = counters[key]


def _read(counts: dict[int, Number]) -> dict[int, float]:
    """The counts as numbers, with one read per device for all tensors."""
    values = {key: float(count) for key, count in counts.items() if not isinstance(count, Tensor)}
    tensors: dict[torch.device, dict[int, Tensor]] = {}
    for key, count in counts.items():
        if isinstance(count, Tensor):
            tensors.setdefault(count.device, {})[key] = count.reshape(()).to(torch.float32)
    for column in tensors.values():
        values.update(zip(column, torch.stack(list(column.values())).tolist(), strict=True))
    return values


def _refuse(differentiable: bool) -> None:
    if differentiable:
        raise ValueError("sync-free optimizers update outside autograd; for differentiable=True take the class of torch.optim")


class SGD(_SyncFree, torch.optim.SGD):
    """`torch.optim.SGD` with `step(closure=None, found_inf=None)`; `foreach` and `fused` are accepted and change nothing."""

    def __init__(
        self,
        params: Any,
        lr: Number = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: Number = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        _refuse(differentiable)
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize)

    def _lacks_state(self, group: dict[str, Any], state: dict[str, Any]) -> bool:
        return "step" not in state or bool(group["momentum"] and state.get("momentum_buffer") is None)

    def _new_state(self, group: dict[str, Any], param: Tensor, state: dict[str, Any]) -> None:
        if group["momentum"]:
            state["momentum_buffer"] = torch.zeros_like(param)

    def _counted(self, state: dict[str, Any]) -> Number | None:
        # torch.optim.SGD keeps no counter: a buffer says that steps were made.
        return state.get("step", None if state.get("momentum_buffer") is None else 1.0)

    def _update(self, group: dict[str, Any], bucket: Bucket, gate: Gate) -> None:
        update_sgd(group, bucket, gate)


def update_sgd(group: dict[str, Any], bucket: Bucket, gate: Gate) -> None:
    """One step of SGD for the parameters of a bucket, by the options of a group."""
    params, updates = bucket.real(bucket.params), bucket.real(bucket.grads)
    if group["maximize"]:
        updates = list(torch._foreach_neg(updates))
    if isinstance(group["weight_decay"], Tensor) or group["weight_decay"]:
        updates = list(torch._foreach_mul(updates, 1.0))  # a copy: older torch than 2.12 has no `_foreach_clone`
        _add_scaled_(updates, params, group["weight_decay"])
    updates = gate.clean(updates)
    counter = bucket.counter()
    scale = -_rate(group, counter)
    momentum = group["momentum"]
    if momentum:
        buffers = bucket.column("momentum_buffer")
        torch._foreach_mul_(buffers, gate.pick(momentum, 1.0, counter))
        _add_scaled_(buffers, updates, _undampened(group["dampening"], counter))
        updates = list(torch._foreach_add(updates, buffers, alpha=momentum)) if group["nesterov"] else buffers
        scale = gate.pick(scale, 0.0, counter)
    _add_scaled_(params, updates, scale)


def _undampened(dampening: float, counter: Tensor) -> Number:
    """The weight of a gradient in its momentum buffer; 1 in the first step, which fills the buffer."""
    return torch.full_like(counter, 1.0 - dampening).masked_fill(counter <= 1, 1.0) if dampening else 1.0


class _AdamRule(_SyncFree):
    """Adam's update, with or without decoupled weight decay."""

    def _new_state(self, group: dict[str, Any], param: Tensor, state: dict[str, Any]) -> None:
        names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")
        for name in names:
            state[name] = torch.zeros_like(param)

    def _update(self, group: dict[str, Any], bucket: Bucket, gate: Gate) -> None:
        update_adam(group, bucket, gate)


def update_adam(group: dict[str, Any], bucket: Bucket, gate: Gate) -> None:
    """One step of Adam for the parameters of a bucket, by the options of a group."""
    params, counter = bucket.real(bucket.params), bucket.counter()
    beta1, beta2 = group["betas"]
    means, squares = bucket.column("exp_avg"), bucket.column("exp_avg_sq")
    grads = gate.clean(_decayed(group, params, bucket.real(bucket.grads), counter, gate))
    torch._foreach_mul_(means, gate.pick(beta1, 1.0, counter))
    _add_scaled_(means, grads, 1.0 - beta1)
    torch._foreach_mul_(squares, gate.pick(beta2, 1.0, counter))
    if isinstance(beta2, Tensor):
        _add_scaled_(squares, list(torch._foreach_mul(grads, grads)), 1.0 - beta2)
    else:
        torch._foreach_addcmul_(squares, grads, grads, value=1.0 - beta2)
    if group["amsgrad"]:
        peaks = bucket.column("max_exp_avg_sq")
        torch._foreach_maximum_(peaks, squares)
        squares = peaks
    # A counter of 0, possible only when skipping, would divide by 0. Dividing by infinity leaves the parameters unchanged.
    counted = counter if isinstance(gate.count, float) else counter.clamp(min=1.0)
    below = list(torch._foreach_sqrt(squares))
    torch._foreach_div_(below, _correction(beta2, counted).sqrt())
    torch._foreach_add_(below, group["eps"])
    torch._foreach_mul_(below, gate.pick(_correction(beta1, counted) / _rate(group, counter), math.inf, counter))
    torch._foreach_addcdiv_(params, means, below, value=-1.0)


def _decayed(group: dict[str, Any], params: list[Tensor], grads: list[Tensor], counter: Tensor, gate: Gate) -> list[Tensor]:
    """The gradients with weight decay added. Decoupled decay shrinks the parameters here instead."""
    if group["maximize"]:
        grads = list(torch._foreach_neg(grads))
    decay = group["weight_decay"]
    if decay and group["decoupled_weight_decay"]:
        torch._foreach_mul_(params, gate.pick(1.0 - _rate(group, counter) * decay, 1.0, counter))
    elif decay:
        grads = list(torch._foreach_add(grads, params, alpha=decay))
    return grads


def _correction(beta: Number, counter: Tensor) -> Tensor:
    """`1 - beta ** counter`; for a Python number, without the cancellation that costs float32 four digits."""
    if isinstance(beta, Tensor):
        return 1.0 - beta**counter
    return -torch.expm1(counter * log(beta)) if beta else torch.ones_like(counter)


class Adam(_AdamRule, torch.optim.Adam):
    """`torch.optim.Adam` with `step(closure=None, found_inf=None)`; `foreach`, `fused`, `capturable` change nothing."""

    def __init__(
        self,
        params: Any,
        lr: Number = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        _refuse(differentiable)
        flags = {"maximize": maximize, "capturable": capturable, "decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **flags)


class AdamW(_AdamRule, torch.optim.AdamW):
    """`torch.optim.AdamW` with `step(closure=None, found_inf=None)`; `foreach`, `fused`, `capturable` change nothing."""

    def __init__(
        self,
        params: Any,
        lr: Number = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        _refuse(differentiable)
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, capturable=capturable)

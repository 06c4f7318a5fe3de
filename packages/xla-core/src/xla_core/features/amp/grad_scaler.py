"""Loss scaling without reading values, if the optimizer can skip a step by itself."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from xla_core.features.captured.tape import current_tape


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` for XLA devices.

    An optimizer whose `step` takes `found_inf` (see `torch_xla.amp.syncfree`) skips bad steps on the device. Other optimizers read a value
    in each step, as in torch; with `use_zero_grad` they step without a read, and all gradients are zero if any is not finite (momentum and
    weight decay still act then).
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        use_zero_grad: bool = False,
    ) -> None:
        super().__init__("xla", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._use_zero_grad = use_zero_grad

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        """Multiply all gradients by `inv_scale` in place. Returns for each device 1.0 if a gradient was not finite, else 0.0."""
        flags: dict[torch.device, Tensor] = {}
        with torch.no_grad():
            for device, grads in _dense_grads(optimizer, allow_fp16).items():
                flags[device] = torch.maximum(found_inf.to(device), _any_not_finite(grads))
                torch._foreach_mul_(grads, inv_scale.to(device))
        return flags

    def _maybe_opt_step(self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        found_inf = _total(optimizer_state["found_inf_per_device"])
        step: Any = optimizer.step
        if "found_inf" in inspect.signature(step).parameters:
            return step(*args, found_inf=found_inf, **kwargs)
        if self._use_zero_grad:
            with torch.no_grad():
                for device, grads in _dense_grads(optimizer, allow_fp16=True).items():
                    skip = found_inf.to(device) != 0
                    for grad in grads:
                        grad.masked_fill_(skip, 0.0)
            return step(*args, **kwargs)
        tape = current_tape()
        if tape is not None:
            tape.problem(
                f"GradScaler reads a value to know whether {type(optimizer).__name__} must skip the step: take an optimizer of "
                "torch_xla.amp.syncfree, or GradScaler(use_zero_grad=True)"
            )
        return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """As in torch: grow after `growth_interval` good steps in a row, back off after a bad one; or take `new_scale`."""
        if not self._enabled or new_scale is not None:
            super().update(new_scale)
            return
        scale, tracker = self._check_scale_growth_tracker("update")
        flags = {
            (key, device): value
            for key, state in self._per_optimizer_states.items()
            for device, value in state["found_inf_per_device"].items()
        }
        if not flags:
            raise AssertionError("update() needs a step() or unscale_() of at least one optimizer before it")
        with torch.no_grad():
            bad = _total(flags).to(scale.device) != 0
            grown = scale * self._growth_factor
            due = ~bad & (tracker + 1 >= self._growth_interval)
            better = torch.where(due & torch.isfinite(grown), grown, scale)
            scale.copy_(torch.where(bad, scale * self._backoff_factor, better))
            tracker.copy_((tracker + 1).masked_fill(bad | due, 0))
        self._per_optimizer_states.clear()


def _dense_grads(optimizer: torch.optim.Optimizer, allow_fp16: bool) -> dict[torch.device, list[Tensor]]:
    """The gradients of an optimizer by device. Raises: ValueError on float16 gradients, as torch does."""
    grads: dict[torch.device, list[Tensor]] = {}
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is None:
                continue
            if param.grad.dtype is torch.float16 and not allow_fp16:
                raise ValueError("Attempting to unscale FP16 gradients: keep parameters in float32 and let autocast lower the rest.")
            if param.grad.layout is not torch.strided:
                raise RuntimeError("GradScaler for XLA devices takes dense gradients only; call to_dense() on sparse ones first")
            grads.setdefault(param.grad.device, []).append(param.grad)
    return grads


def _any_not_finite(grads: list[Tensor]) -> Tensor:
    """1.0 if any element of any tensor is infinite or NaN, else 0.0. The infinity norm keeps both."""
    largest: dict[torch.dtype, list[Tensor]] = {}
    for norm in torch._foreach_norm([grad for grad in grads if grad.numel()] or [torch.zeros(1, device=grads[0].device)], torch.inf):
        largest.setdefault(norm.dtype, []).append(norm)
    return torch.stack([torch.isfinite(torch.stack(norms)).all() for norms in largest.values()]).all().logical_not().to(torch.float32)


def _total(flags: dict[Any, Tensor]) -> Tensor:
    """The sum of all entries, on the device of the first."""
    first, *others = flags.values()
    total = first
    for value in others:
        total = total + value.to(first.device)
    return total

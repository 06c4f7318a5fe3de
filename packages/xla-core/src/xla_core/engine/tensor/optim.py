"""Let optimizers update whole lists of xla parameters (`foreach`), not one parameter after the other, unless told otherwise.

One recorded operation for each list instead of a dozen for each parameter is the largest saving in recording there is. Adam and AdamW,
which most programs use, record a single one for all lists, even with `foreach=False`: the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from xla_core.base import private_torch
from xla_core.engine.graph.aval import Aval
from xla_core.engine.tensor.device import direct
from xla_core.engine.tensor.plain import PLAIN, holder, holder_of, storage_of
from xla_core.engine.tensor.sharding import with_sharding_of
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.ops.optim.optimizer import ADAM

_FUSED = ("_fused_adagrad_", "_fused_adam_", "_fused_adamw_", "_fused_sgd_")
_fakes = torch.library.Library("aten", "IMPL", "Meta")
_numbers: set[type] = {float, int}
_counts: set[type] = {Tensor}
_OURS = frozenset({XLATensor, *PLAIN})
_update = direct(ADAM)


def register() -> None:
    """Add xla tensors to the types that torch trusts with its list operations, and take over Adam's update.

    `torch.optim`, `clip_grad_norm_` and `swa_utils` ask these lists; the device is trusted already, as torch's private backend.
    """
    for supported in private_torch.foreach_types():
        if XLATensor not in supported:
            supported.append(XLATensor)
    private_torch.radam_in_lists(lambda parameter: parameter.device.type == "xla")  # another branch would be another program
    private_torch.adam_by(_adam)
    private_torch.complete_momenta_of_sgd(_momenta_before_the_first)
    # Without one, a fake tensor (DTensor makes some of each call) runs the update on real tensors with dispatch to classes switched off.
    for name in (*_FUSED, *(f"{name}.tensor_lr" for name in _FUSED)):
        if not private_torch.has_kernel(f"aten::{name}", "Meta"):
            _fakes.impl(name, _changes_no_shape)


def _changes_no_shape(*_: Any, **__: Any) -> None:
    """What an update in place does to fake tensors."""


def trust(number: type[float], count: type[Tensor]) -> None:
    """Let Adam's update take hyperparameters of type `number` and step counts of type `count`, which follow what is computed from them."""
    _numbers.add(number)
    _counts.add(count)


def _plain(number: Any) -> float:
    """A number as a float of Python's own class. One that is followed (engine/tracing/numbers.py) is told by its float in the graph."""
    return float.__pos__(number) if isinstance(number, float) else float(number)


def _adam(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    *,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    amsgrad: bool,
    has_complex: bool,
    beta1: Any,
    beta2: Any,
    lr: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    capturable: bool,
    differentiable: bool,
    decoupled_weight_decay: bool,
) -> bool:
    """Record the update of `torch.optim.adam` as one operation. Returns False, and does nothing, for unusual arguments."""
    if has_complex or capturable or differentiable or torch.is_grad_enabled() or grad_scale is not None or found_inf is not None:
        return False
    if not params:
        return False
    if not _numbers.issuperset(map(type, (beta1, beta2, lr, weight_decay, eps))):
        return False
    if not _counts.issuperset(map(type, state_steps)) or not all(step.is_cpu for step in state_steps):
        return False
    largest = max_exp_avg_sqs if amsgrad else []
    if not _alike([params, exp_avgs, exp_avg_sqs, *([largest] if largest else [])], grads):
        return False
    torch._foreach_add_(state_steps, torch.tensor(1.0, device="cpu"), alpha=1.0)
    counts = [step.item() for step in state_steps]
    if counts.count(counts[0]) == len(counts):
        counts = counts[:1]
    # In torch's order of operations: in another order they would round to other numbers.
    step_sizes = [_plain((lr / (1 - beta1**count)) * -1) for count in counts]
    roots = [_plain((1 - beta2**count) ** 0.5) for count in counts]
    decay = shrink = None
    if weight_decay != 0:
        decay, shrink = (None, _plain(1 - lr * weight_decay)) if decoupled_weight_decay else (_plain(weight_decay), None)
    numbers = (_plain(1 - beta1), _plain(beta2), _plain(1 - beta2), _plain(eps), decay, shrink, maximize)
    _update(params, grads, exp_avgs, exp_avg_sqs, largest, step_sizes, roots, *numbers)
    return True


def _alike(written: list[list[Tensor]], grads: list[Tensor]) -> bool:
    """Whether the lists hold xla tensors that match in shape and dtype one by one, and each one in `written` has a storage of its own."""
    storages: list[Storage] = []
    avals: list[Aval] | None = None
    for tensors in (*written, grads):
        behind = _behind(tensors)
        if behind is None:
            return False
        if tensors is grads:
            listed = [tensor._storage.value.aval if tensor._view is None else tensor._view.aval for tensor in behind]
        else:
            if any([tensor._view for tensor in behind]):
                return False
            own_storages = [tensor._storage for tensor in behind]
            storages += own_storages
            listed = [storage.value.aval for storage in own_storages]
        if avals is None:
            avals = listed
        elif listed != avals:  # interned: a comparison of identities
            return False
    kinds = set(avals or ())
    return bool(kinds) and len(set(storages)) == len(storages) and all(aval.dtype.is_floating_point for aval in kinds)


def _behind(tensors: Sequence[Any]) -> list[XLATensor] | None:
    """The xla tensors behind xla tensors and plain ones; None if there is any other tensor."""
    kinds = set(map(type, tensors))
    if kinds == {XLATensor}:
        return tensors  # type: ignore[return-value]
    if not _OURS.issuperset(kinds):
        return None
    behind: list[Any] = [tensor if type(tensor) is XLATensor else getattr(storage_of(tensor), "_behind", None) for tensor in tensors]
    return behind if set(map(type, behind)) == {XLATensor} else None


def _momenta_before_the_first(
    parameters: list[torch.Tensor], gradients: list[torch.Tensor], momenta: list[torch.Tensor | None], dampened: bool
) -> bool:
    """Make the momenta that are missing, so that SGD's first step is the same program as all later ones. Returns whether all were missing.

    They are negative zeros: adding these changes no number, not even a zero of either sign. They are sharded like the parameters.
    """
    new = [index for index, momentum in enumerate(momenta) if momentum is None]
    possible = all(
        gradients[index].device.type == "xla"
        and gradients[index].is_floating_point()
        and holder_of(parameters[index]) is not None  # a DTensor is none of ours
        and holder_of(gradients[index]) is not None
        for index in new
    )
    # Beside older ones, which are dampened, new ones are not: no list operation does both.
    if not new or not possible or (dampened and len(new) < len(momenta)) or torch.is_grad_enabled():
        return False
    for index in new:
        momenta[index] = with_sharding_of(holder(parameters[index]), holder(torch.full_like(gradients[index], -0.0)))
    return len(new) == len(momenta)

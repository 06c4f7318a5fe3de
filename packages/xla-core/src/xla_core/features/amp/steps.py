"""Single steps of the sync-free optimizers, as functions over lists of tensors."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any

import torch
from torch import Tensor

from xla_core.features.amp.syncfree import Bucket, Gate, update_adam, update_sgd


def _buckets(steps: Sequence[Tensor], params: Sequence[Tensor], grads: Sequence[Tensor], states: list[dict[str, Any]]) -> list[Bucket]:
    """Group parameters by step counter."""
    buckets: dict[int, Bucket] = {}
    for step, param, grad, state in zip(steps, params, grads, states, strict=True):
        bucket = buckets.setdefault(id(step), Bucket(step))
        bucket.params.append(param)
        bucket.grads.append(grad)
        bucket.states.append(state)
    return list(buckets.values())


@torch.no_grad()
def adam_step(
    found_inf: Tensor,
    state_steps: Sequence[Tensor],
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor],
    *,
    amsgrad: bool,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    use_adamw: bool,
) -> None:
    """Make one step of Adam or AdamW in place. Nothing changes, not even counters, if found_inf is not zero.

    max_exp_avg_sqs: empty without amsgrad. Raises ValueError for lists of different lengths.
    """
    columns = [exp_avgs, exp_avg_sqs, max_exp_avg_sqs] if amsgrad else [exp_avgs, exp_avg_sqs]
    states = [dict(zip(("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), row, strict=False)) for row in zip(*columns, strict=True)]
    group = {"betas": (beta1, beta2), "lr": lr, "weight_decay": weight_decay, "eps": eps, "amsgrad": amsgrad, "maximize": maximize}
    for bucket in _buckets(state_steps, params, grads, states):
        gate = Gate(found_inf, bucket.step.device)
        bucket.step.add_(gate.count)
        update_adam({**group, "decoupled_weight_decay": use_adamw}, bucket, gate)


@torch.no_grad()
def sgd_step(
    found_inf: Tensor,
    state_steps: Sequence[Tensor],
    params: Sequence[Tensor],
    d_p_list: Sequence[Tensor],
    momentum_buffer_list: MutableSequence[Tensor | None],
    *,
    weight_decay: float,
    momentum: float,
    lr: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """Make one step of SGD in place. Nothing changes, not even counters, if found_inf is not zero.

    d_p_list: the gradients. momentum_buffer_list: with momentum, each None is replaced by a new buffer. Raises ValueError for lists of
    different lengths.
    """
    if momentum:
        momentum_buffer_list[:] = [
            torch.zeros_like(param) if buffer is None else buffer for param, buffer in zip(params, momentum_buffer_list, strict=True)
        ]
    states = [{"momentum_buffer": buffer} for buffer in momentum_buffer_list]
    group = {
        "weight_decay": weight_decay,
        "momentum": momentum,
        "lr": lr,
        "dampening": dampening,
        "nesterov": nesterov,
        "maximize": maximize,
    }
    for bucket in _buckets(state_steps, params, d_p_list, states):
        gate = Gate(found_inf, bucket.step.device)
        bucket.step.add_(gate.count)
        update_sgd(group, bucket, gate)


def _xla_adam_optimizer_step_(
    found_inf: Tensor,
    step: Tensor,
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    use_adamw: bool,
) -> None:
    """`adam_step` for one parameter."""
    options: dict[str, Any] = {"beta1": beta1, "beta2": beta2, "lr": lr, "weight_decay": weight_decay, "eps": eps}
    flags = {"amsgrad": amsgrad, "maximize": maximize, "use_adamw": use_adamw}
    adam_step(found_inf, [step], [param], [grad], [exp_avg], [exp_avg_sq], [max_exp_avg_sq], **options, **flags)


def _xla_sgd_optimizer_step_(
    found_inf: Tensor,
    step: Tensor,
    param: Tensor,
    buf: Tensor,
    d_p: Tensor,
    weight_decay: float,
    momentum: float,
    lr: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """`sgd_step` for one parameter, with its buffer `buf` and gradient `d_p`."""
    options: dict[str, Any] = {"weight_decay": weight_decay, "momentum": momentum, "lr": lr, "dampening": dampening}
    sgd_step(found_inf, [step], [param], [d_p], [buf], **options, nesterov=nesterov, maximize=maximize)

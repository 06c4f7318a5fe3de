"""An optimizer whose state and work are sharded over the replicas (ZeRO-1)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

import torch_xla.core.xla_model as xm
from xla_core.abi.collectives import Groups, ReplicaGroups, even_groups_of
from xla_core.abi.job import ordinal, world_size
from xla_distributed.even_sharding import EvenSharding, updated_master


@dataclass(frozen=True, slots=True)
class _Shard:
    """A parameter, this replica's shard of it as the base optimizer sees it (the master), and the dtype in which collectives send both."""

    parameter: torch.Tensor
    master: torch.nn.Parameter
    sharding: EvenSharding
    collective_dtype: torch.dtype


Group = dict[str, Any]


def _options(group: Group) -> Group:
    return {name: value for name, value in group.items() if name != "params"}


def _copy_options(sources: list[Group], targets: list[Group]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.update(_options(source))


def _describe(sharding: dict[str, Any]) -> str:
    return f"replica {sharding['replica']} of {sharding['replicas']}, sharded among {sharding['group']}"


def _weak_hook(method: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    """Make a hook that does not keep the method's object alive: a deleted optimizer must not act on its successor's parameters."""
    reference = weakref.WeakMethod(method)

    def run(parameter: torch.Tensor) -> None:
        alive = reference()
        if alive is not None:
            alive(parameter)

    return run


class ZeroRedundancyOptimizer(Optimizer):
    """`optimizer_class(params, **defaults)`, of which each replica of a sharding group holds and computes its part only.

    A step reduces and scatters the gradients (their mean), clips them, steps the base optimizer on this replica's shards and gathers
    the new parameters. All of it is recorded and nothing is read. Call `step()`, not `xm.optimizer_step`, which would reduce gradients
    before. `optimizer_class` sees parts of tensors: results are those of one process where it treats each element by itself, as SGD and
    Adam do.

    params, defaults: as any optimizer takes them; groups, schedulers and hooks work as ever. Parameters are on the device.
    optimizer_dtype: of the shards, of accumulated gradients and so of the optimizer's state. None: float32, or the parameter's if wider.
    grad_clipping, max_norm: clip gradients to this norm (None: 1.0), taken over all gradients; `grad_norm` is the norm before.
    pin_layout: as collectives take it; lists travel without.
    sharding_groups: lists of ordinals, of one size. None: all replicas. Nothing is reduced between groups: replicas of different groups
        hold different parameters (model parallelism), and the groups are those of data parallelism.
    grad_norm_groups: groups over which the squared norms of sharding groups are added up too, for parameters that are sharded over them.
    lazy_init: shard nothing before `init_zero()`.
    bucket_cap_mb_all_gather, bucket_cap_mb_reduce_scatter: MiB of tensors that travel together. 0: one collective for each tensor.
    use_grad_acc_hook: add up gradients in `optimizer_dtype` as backward makes them, and free `.grad`.
    save_master_weights: put the shards in `state_dict()`; an exact resume needs them if they are wider than the parameters.
    higher_cc_precision: let gradients and parameters travel in `optimizer_dtype`, not in the parameter's.

    Parameters that other code writes to between steps count, as with any optimizer.
    Raises RuntimeError for parameters that are not on an xla device, ValueError for a dtype that cannot hold them or groups that are
    none, AssertionError for sharding groups of several sizes.
    """

    inited = False
    base_optimizer: Optimizer
    _group: Groups

    def __init__(
        self,
        params: ParamsT,
        optimizer_class: Callable[..., Optimizer],
        optimizer_dtype: torch.dtype | None = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        pin_layout: bool = True,
        sharding_groups: ReplicaGroups = None,
        grad_norm_groups: ReplicaGroups = None,
        lazy_init: bool = False,
        bucket_cap_mb_all_gather: int = 0,
        bucket_cap_mb_reduce_scatter: int = 0,
        use_grad_acc_hook: bool = False,
        save_master_weights: bool = False,
        higher_cc_precision: bool = False,
        **defaults: Any,
    ) -> None:
        self.optimizer_class = optimizer_class
        self.optimizer_dtype = optimizer_dtype
        self.grad_clipping = grad_clipping
        self.max_norm = 1.0 if max_norm is None else max_norm
        self.pin_layout = pin_layout
        self.sharding_groups = sharding_groups
        self.grad_norm_groups = grad_norm_groups
        self.bucket_cap_mb_all_gather = bucket_cap_mb_all_gather
        self.bucket_cap_mb_reduce_scatter = bucket_cap_mb_reduce_scatter
        self.use_grad_acc_hook = use_grad_acc_hook
        self.save_master_weights = save_master_weights
        self.higher_cc_precision = higher_cc_precision
        self._base_options = dict(defaults)
        self._shards: list[_Shard] = []
        self._accumulated: dict[torch.Tensor, torch.Tensor] = {}
        self._grad_norm: torch.Tensor | None = None
        # After the fields above: it calls `add_param_group`.
        super().__init__(params, defaults)
        self._complete()
        if not lazy_init:
            self.init_zero()

    def _complete(self) -> None:
        """Give the groups the options that `optimizer_class` adds to the user's options: schedulers look for them."""
        dummies = [{**_options(group), "params": [torch.nn.Parameter(torch.zeros(1))]} for group in self.param_groups]
        template = self.optimizer_class(dummies, **self._base_options)
        self.defaults = dict(template.defaults)
        for group, complete in zip(self.param_groups, template.param_groups, strict=True):
            group.update({name: value for name, value in _options(complete).items() if name not in group})

    def init_zero(self) -> None:
        """Shard the parameters as they are now and make the base optimizer; with `lazy_init`, call it before the first step."""
        self._group = even_groups_of(self.sharding_groups, "ZeroRedundancyOptimizer")
        self._shards.clear()
        groups = [self._cut(group) for group in self.param_groups]
        self.base_optimizer = self.optimizer_class(groups, **self._base_options)
        self.inited = True

    def add_param_group(self, param_group: Group) -> None:
        """As any optimizer does."""
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        if self.use_grad_acc_hook:
            for parameter in filter(lambda parameter: parameter.requires_grad, added["params"]):
                parameter.register_post_accumulate_grad_hook(_weak_hook(self._accumulate))
        if self.inited:
            self.base_optimizer.add_param_group(self._cut(added))

    def _cut(self, group: Group) -> Group:
        """A group of the base optimizer, with new shards of the group's parameters."""
        shards = [self._shard_of(parameter) for parameter in group["params"]]
        self._shards += shards
        return {**_options(group), "params": [shard.master for shard in shards]}

    def _shard_of(self, parameter: torch.Tensor) -> _Shard:
        if parameter.device.type != "xla":
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} is on device {parameter.device}: move the model to the xla device, "
                "which makes new parameters, then make the optimizer"
            )
        dtype = self._dtype_for(parameter)
        sharding = EvenSharding(tuple(parameter.shape), self._group.size, self._group.position)
        # A copy also where the dtype is the same: the base optimizer writes to it, and a shard may be a view of the parameter.
        master = sharding.shard(parameter.detach()).to(dtype, copy=True)
        return _Shard(parameter, torch.nn.Parameter(master), sharding, dtype if self.higher_cc_precision else parameter.dtype)

    def _dtype_for(self, parameter: torch.Tensor) -> torch.dtype:
        dtype = self.optimizer_dtype or torch.promote_types(parameter.dtype, torch.float32)
        if dtype.is_complex != parameter.is_complex() or not (dtype.is_complex or dtype.is_floating_point):
            raise ValueError(f"optimizer_dtype {dtype} cannot hold parameters of {parameter.dtype}")
        return dtype

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm of all gradients at the last step, before they were clipped; 0-d, on the device. None without a step or clipping."""
        return self._grad_norm

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """One step of all replicas; what `closure` returned. kwargs: for the base optimizer's step.

        Replicas of a sharding group must have gradients of the same parameters. Raises RuntimeError before `init_zero()`.
        """
        self._check_inited("step")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        stepped = self._reduce_gradients()
        if self.grad_clipping:
            self._clip()
        _copy_options(self.param_groups, self.base_optimizer.param_groups)
        self.base_optimizer.step(**kwargs)
        _copy_options(self.base_optimizer.param_groups, self.param_groups)  # some optimizers count there
        self._write_parameters(stepped)
        return loss

    def _check_inited(self, caller: str) -> None:
        if not self.inited:
            raise RuntimeError(f"{caller}: the parameters are not sharded yet, because of lazy_init=True; call init_zero() first")

    def _accumulate(self, parameter: torch.Tensor) -> None:
        """Add a parameter's gradient to its accumulated gradient, and free it."""
        if parameter.grad is None:
            return
        gradient = parameter.grad.detach().to(self._dtype_for(parameter))
        parameter.grad = None
        with torch.no_grad():
            if parameter in self._accumulated:
                self._accumulated[parameter] += gradient
            else:
                self._accumulated[parameter] = gradient

    def _gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        if not self.use_grad_acc_hook:
            return parameter.grad
        self._accumulate(parameter)  # a gradient that did not come from backward
        return self._accumulated.get(parameter)

    def _reduce_gradients(self) -> list[_Shard]:
        """Reduce the gradients and give each shard its part of the mean; return the shards that have one."""
        with_gradients = [(shard, gradient) for shard in self._shards if (gradient := self._gradient(shard.parameter)) is not None]
        padded = [shard.sharding.padded(gradient).to(shard.collective_dtype) for shard, gradient in with_gradients]
        parts = self._scattered(padded)
        for (shard, _), part in zip(with_gradients, parts, strict=True):
            master = shard.master
            # If other code has written to the parameter since the last step, its values count.
            master.copy_(updated_master(master, shard.sharding.shard(shard.parameter)))
            master.grad = part.to(master.dtype)
        return [shard for shard, _ in with_gradients]

    def _scattered(self, padded: list[torch.Tensor]) -> list[torch.Tensor]:
        """This replica's parts of the means over its sharding group."""
        count, groups, cap = self._group.size, self.sharding_groups, self.bucket_cap_mb_reduce_scatter
        if cap:
            parts: list[torch.Tensor] = xm.reduce_scatter_bucketized("sum", padded, 1.0 / count, 0, count, groups, bucket_cap_mb=cap)
            return parts
        return [xm.reduce_scatter("sum", tensor, 1.0 / count, 0, count, groups, pin_layout=self.pin_layout) for tensor in padded]

    def _gathered(self, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        """The parts of all members of the sharding group, concatenated."""
        groups, cap = self.sharding_groups, self.bucket_cap_mb_all_gather
        if cap:
            gathered: list[torch.Tensor] = xm.all_gather_bucketized(parts, 0, groups, bucket_cap_mb=cap)
            return gathered
        return [xm.all_gather(part, 0, groups, pin_layout=self.pin_layout) for part in parts]

    def _clip(self) -> None:
        """Scale the shards' gradients down to `max_norm`, as `torch.nn.utils.clip_grad_norm_` does with whole ones."""
        masters = [shard.master for shard in self._shards]
        norm = torch.nn.utils.get_total_norm([master.grad for master in masters if master.grad is not None])
        # Squares add up over shards, norms do not. Without gradients the norm is a zero on the CPU, and this replica still takes part.
        square = norm.to(masters[0].device, torch.promote_types(norm.dtype, torch.float32)).square()
        square = xm.all_reduce("sum", square, groups=self.sharding_groups, pin_layout=self.pin_layout)
        if self.grad_norm_groups:
            square = xm.all_reduce("sum", square, groups=self.grad_norm_groups, pin_layout=self.pin_layout)
        self._grad_norm = square.sqrt()
        torch.nn.utils.clip_grads_with_norm_(masters, self.max_norm, self._grad_norm)

    def _write_parameters(self, stepped: list[_Shard]) -> None:
        """Write the shards that the base optimizer has stepped to the parameters."""
        gathered = self._gathered([shard.master.detach().to(shard.collective_dtype) for shard in stepped])
        for shard, padded in zip(stepped, gathered, strict=True):
            # `zero_grad` reaches the parameters only.
            shard.master.grad = None
            shard.parameter.copy_(shard.sharding.unsharded(padded))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As any optimizer does; accumulated gradients too."""
        super().zero_grad(set_to_none)
        if set_to_none:
            self._accumulated.clear()
        for gradient in self._accumulated.values():
            gradient.zero_()

    def state_dict(self) -> dict[str, Any]:
        """The state of this replica's part; each saves and loads its own.

        param_groups as any optimizer has; `base_state`: the base optimizer's state of the shards, by number of the parameter; `shape_info`:
        the parameters' shapes; `sharding`: whose part this is; `sharded_master_weights`: the shards, with `save_master_weights`.
        Raises RuntimeError before `init_zero()`.
        """
        self._check_inited("state_dict")
        state = super().state_dict()
        state["base_state"] = self.base_optimizer.state_dict()["state"]
        state["shape_info"] = self._shapes()
        state["sharding"] = self._sharding()
        if self.save_master_weights:
            state["sharded_master_weights"] = {index: shard.master.detach() for index, shard in enumerate(self._shards)}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict()` returned on this replica; parameters are loaded by themselves, before or after.

        Shards that were not saved are cut from the parameters as they are at the next step. Raises ValueError for the state of another
        replica, of other sharding or of other parameters, RuntimeError before `init_zero()`.
        """
        self._check_inited("load_state_dict")
        self._check_same(state_dict)
        super().load_state_dict(state_dict)
        # Its present groups: options come from this optimizer's at the next step.
        groups = self.base_optimizer.state_dict()["param_groups"]
        self.base_optimizer.load_state_dict({"state": state_dict["base_state"], "param_groups": groups})
        saved = state_dict.get("sharded_master_weights")
        with torch.no_grad():
            for index, shard in enumerate(self._shards):
                shard.master.copy_(shard.sharding.shard(shard.parameter) if saved is None else saved[index])

    def _shapes(self) -> dict[int, list[int]]:
        return {index: list(shard.sharding.shape) for index, shard in enumerate(self._shards)}

    def _sharding(self) -> dict[str, Any]:
        own_ordinal, size = ordinal(), world_size()
        members = next((list(group) for group in self.sharding_groups or () if own_ordinal in group), list(range(size)))
        return {"replica": own_ordinal, "replicas": size, "group": members}

    def _check_same(self, state_dict: dict[str, Any]) -> None:
        missing = {"base_state", "shape_info", "sharding"} - state_dict.keys()
        if missing:
            raise ValueError(f"this is no state of a ZeroRedundancyOptimizer: it has {sorted(state_dict)}, not {sorted(missing)}")
        saved, current = state_dict["sharding"], self._sharding()
        if saved != current:
            raise ValueError(f"the state is that of {_describe(saved)}; this is {_describe(current)}: load what this replica saved")
        shapes, expected = state_dict["shape_info"], self._shapes()
        if shapes != expected:
            raise ValueError(f"the state is of parameters of shapes {list(shapes.values())}, not {list(expected.values())}")

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a ZeroRedundancyOptimizer is bound to its replica: copy its state_dict() instead")

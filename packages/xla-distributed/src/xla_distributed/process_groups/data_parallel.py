"""Let torch's DistributedDataParallel run on device xla: what it needs besides the collectives."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch.distributed.algorithms.join import Join

from xla_core.abi.targets import planned_devices
from xla_distributed._compat import allow_bfloat16_hooks, compare_parameters_if, keep_used_flags_on_host
from xla_distributed.process_groups.process_group import ProcessGroupXla


def _refuse_join() -> None:
    """Make `Join` raise NotImplementedError over xla process groups: a replica out of inputs would read what others only record."""
    original = Join.__init__

    def init(self: Join, joinables: list[Any], enable: bool = True, *args: Any, **kwargs: Any) -> None:
        original(self, joinables, enable, *args, **kwargs)
        group = joinables[0].join_process_group
        if enable and isinstance(group, ProcessGroupXla) and group.size() > 1:
            raise NotImplementedError(
                "join, for uneven inputs, is not possible on xla devices, whose replicas run programs with the same collectives: give all "
                "replicas as many batches, by DistributedSampler or by repeating some"
            )

    Join.__init__ = init  # type: ignore[method-assign]


@cache
def register() -> None:
    """Let DistributedDataParallel look for unused parameters and send bfloat16."""
    keep_used_flags_on_host("xla")
    allow_bfloat16_hooks("xla")
    compare_parameters_if(lambda: not planned_devices())
    _refuse_join()


register()

"""What a distribution beside the core may bring to it: a protocol for each part, and `Plugin`, which says which of them it has.

The core has the signatures, the checks of arguments and the docstrings of what users call; an implementation gets arguments that are right.
A module may be one: its functions are the protocol's methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from xla_core.api.reductions import ReduceOp
from xla_core.api.replica_groups import Groups
from xla_core.engine.placement.sharding import Sharding

Tensor = torch.Tensor


class CollectiveBackend(Protocol):
    """Collectives of `xm` among several replicas. All members of a group call the same in one order, each with its own tensors.

    Results are new tensors on the device of the inputs; nothing is written to these. Dimensions are counted from the first.
    """

    @property
    def others(self) -> Mapping[str, Callable[..., Any]]:
        """Collectives that the core does not know, by their names in `torch_xla.core.xla_model`."""
        ...

    def all_reduce(self, op: ReduceOp, tensors: list[Tensor], scale: float, groups: Groups) -> Sequence[Tensor]:
        """The reduction of each tensor over the members of a group, times `scale`: shapes and dtypes of the inputs."""
        ...

    def all_gather(self, tensors: list[Tensor], dim: int, groups: Groups) -> Sequence[Tensor]:
        """The tensors of all members concatenated along `dim`, in the order of the group. Groups are of one size."""
        ...

    def reduce_scatter(self, op: ReduceOp, tensors: list[Tensor], scale: float, dim: int, groups: Groups) -> Sequence[Tensor]:
        """As `all_reduce`, of which member k keeps part k along `dim`, which the size of the group divides. Groups are of one size."""
        ...

    def all_to_all(self, tensor: Tensor, split_dim: int, concat_dim: int, groups: Groups) -> Tensor:
        """Part j along `split_dim`, which the size of the group divides, goes to member j, who concatenates along `concat_dim`."""
        ...

    def broadcast(self, tensors: list[Tensor], position: int, groups: Groups) -> Sequence[Tensor]:
        """The tensors of the member at this position of the group."""
        ...

    def permute(self, tensor: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
        """The tensor of the replica that is the source of this one in `pairs` (source, target); zeros where there is none."""
        ...

    def exchange(self, payload: bytes, tag: str | None) -> list[bytes]:
        """The payloads of all replicas, in order of their ordinals, when all have come. Raises on all for different tags."""
        ...

    def fail(self, error: BaseException, doing: str) -> None:
        """Tell the others, who will wait for this replica, that `error` ended what it was doing."""
        ...


class Launcher(Protocol):
    """Starts the replicas of a job on this host, and knows its hosts."""

    def launch(self, fn: Callable[..., Any], args: tuple[Any, ...], start_method: str, debug_single_process: bool) -> None:
        """`fn(index, *args)` in a process for each device; in this one, if it is a replica already or `debug_single_process` is set."""
        ...

    def worker_hosts(self) -> list[str]:
        """Names or addresses of the hosts of the TPU slice, in order; empty where there is none."""
        ...


class ShardingBackend(Protocol):
    """Shardings in SPMD mode: what tensors get by themselves, and the functions of `torch_xla._XLAC`, without their first underscore."""

    @property
    def OpSharding(self) -> Callable[..., Any]:
        """The class of shardings: of a type, a tile assignment, groups and replication groups."""
        ...

    @property
    def XlaShardingSpec(self) -> Callable[..., Any]:
        """The class of the shardings of inputs, with a tensor that has the shape."""
        ...

    def sharding_of_upload(self, tensor: Tensor) -> Sharding | None:
        """The sharding of what moves to `xla` under `XLA_AUTO_SPMD`, which divides its shape evenly; None for replicated."""
        ...

    def xla_mark_sharding(self, t: Tensor, sharding: Any) -> None:
        """Set the sharding of `t`, in place."""
        ...

    def mark_manual_sharding(self, t: Tensor) -> None:
        """Make a pending result a manual value that each device has all of, in place."""
        ...

    def xla_clear_sharding(self, t: Tensor) -> None:
        """Clear the sharding of `t`, in place."""
        ...

    def get_xla_sharding_type(self, t: Tensor) -> int | None:
        """The number of the type of the sharding; None without one."""
        ...

    def get_xla_sharding_spec(self, t: Tensor) -> str:
        """The text of the sharding, empty without one."""
        ...

    def get_xla_op_sharding(self, t: Tensor) -> Any:
        """The sharding, an `OpSharding`; None without one."""
        ...

    def spmd_full_to_shard_shape(self, t: Tensor) -> Tensor:
        """Each device's shard of a tensor, which begins a manual region."""
        ...

    def spmd_shard_to_full_shape(self, t: Tensor, sharding: Any, full_shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of `full_shape` whose shards the devices hold, which ends a manual region."""
        ...

    def get_local_shards(self, tensors: Sequence[Tensor]) -> list[list[tuple[Tensor, str]]]:
        """Data on the CPU and device of each shard of this process."""
        ...

    def load_local_shards(self, t: Tensor, shards: Sequence[Tensor], devices: Sequence[str]) -> None:
        """Overwrite the shards of this process."""
        ...

    def get_local_shard_replica_and_indices(self, tensors: Sequence[Tensor]) -> list[list[tuple[int, Any]]]:
        """Replica number and indices of each shard of this process."""
        ...

    def global_tensor_from_cpu_shards(self, shards: Sequence[Tensor], sharding: Any, global_shape: Sequence[int] | None = None) -> Tensor:
        """The tensor whose shards these are."""
        ...


class Reports(Protocol):
    """What the process did, as text, and profiles of it."""

    def metrics_report(self) -> str:
        """All counters and metrics."""
        ...

    def short_metrics_report(self, counter_names: list[str] | None = None, metric_names: list[str] | None = None) -> str:
        """Those that are named, or the usual ones."""
        ...

    def profiler(self) -> Any:
        """The module `torch_xla._XLAC.profiler`: TraceMe, start_server, trace."""
        ...


class CheckpointWriter(Protocol):
    """Writes what `xm.save` is given."""

    def save(self, data: Any, file_or_path: Any, master_only: bool, global_master: bool, sync: bool) -> None:
        """As `xm.save`, among replicas and processes."""
        ...


@dataclass(frozen=True, slots=True)
class Plugin:
    """What one distribution brings: for each part a function that gives it, called when the part is first needed; None: not this one.

    prepare: called once, before the first question about the job and before the devices start: to join a job, to listen to events.
    """

    prepare: Callable[[], None] | None = None
    collectives: Callable[[], CollectiveBackend] | None = None
    launcher: Callable[[], Launcher] | None = None
    sharding: Callable[[], ShardingBackend] | None = None
    reports: Callable[[], Reports] | None = None
    checkpoints: Callable[[], CheckpointWriter] | None = None

"""Backend `xla` of `torch.distributed`: the collectives of device `xla` behind torch's process groups."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp, Store, Work  # type: ignore[attr-defined]

import torch_xla
import torch_xla.core.xla_model as xm
from xla_core.abi.collectives import Members, ReplicaGroups
from xla_core.abi.job import is_spmd, ordinal, world_size
from xla_distributed._compat import never_trace_methods
from xla_distributed.collectives.ops.broadcast import broadcast_from
from xla_distributed.process_groups import meshes
from xla_distributed.process_groups.mailbox import Mailbox
from xla_distributed.process_groups.reductions import parse_torch_reduce_op
from xla_distributed.process_groups.unlike import exchange_unlike, gather_unlike, scatter_unlike
from xla_distributed.process_groups.works import ReceivingWork, RecordedWork

# A Python process group takes tensor lists and options; torch's stubs list the overloads of the C++ class besides.
_Base: Any = ProcessGroup
Tensors = Sequence[torch.Tensor]


def _pick(options: Any, name: str, default: Any) -> Any:
    return default if options is None else getattr(options, name)


def _on_device(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's data on the device, which autograd does not see written to; torch's object collectives bring CPU tensors."""
    return tensor.data.to("xla")


def _copy_back(tensors: Tensors, moved: Tensors) -> None:
    """Copy results to those tensors that are not on the device themselves."""
    for tensor, result in zip(tensors, moved, strict=True):
        if tensor.device.type != "xla":
            tensor.data.copy_(result)


def one_dim(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, with a dimension if it has none."""
    return tensor.reshape(1) if tensor.dim() == 0 else tensor


def _fill(output: torch.Tensor, result: torch.Tensor) -> None:
    with torch.no_grad():
        output.copy_(result.reshape(output.shape))


def _receive(output: torch.Tensor, result: torch.Tensor) -> None:
    """`_fill`, where gloo writes to the tensor itself instead of copying to it: the tensor's version stays."""
    _fill(output.data, result)


def _check_elements(collective: str, actual: int, expected: int) -> None:
    if actual != expected:
        raise RuntimeError(f"{collective}: the output has {actual} elements, the result {expected}")


def parts_of(tensor: torch.Tensor, sizes: Sequence[int], count: int) -> list[torch.Tensor]:
    """The rows of a tensor in parts of these sizes, of equal ones without any. Raises RuntimeError if they do not make up the tensor."""
    if not sizes and tensor.size(0) % count:
        raise RuntimeError(f"all_to_all: {tensor.size(0)} rows cannot be divided among {count} members")
    part_sizes = list(sizes) or [tensor.size(0) // count] * count
    if len(part_sizes) != count or sum(part_sizes) != tensor.size(0):
        raise RuntimeError(f"all_to_all: the parts {part_sizes} do not make up the {tensor.size(0)} rows of the tensor for {count} members")
    return list(tensor.split(part_sizes))


class SplittingBackend:
    """The object that torch uses as the backend of one device of a group when it splits the group.

    options: of the group that is split, for those that come of it: none.
    """

    supports_splitting = True
    supports_coalescing = False
    supports_time_estimate = False
    options = None

    def __init__(self, group: ProcessGroupXla) -> None:
        self._group = group

    def name(self) -> str:
        """`xla`."""
        return "xla"

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Bind the group to its device: nothing is connected before the first collective."""
        self._group.bound_device_id = device

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Nothing: those that are in no part take no part in a split."""

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: the flight recorder counts."""


class ProcessGroupXla(_Base):  # type: ignore[misc]
    """All replicas of this process's job, or some of them; or one of several groups that all issue their collectives together.

    prefix_store: torch's, None where there is none; rank, size: of this process in the group; timeout: how long members wait for each
    other on the host; groups: the ordinals of all groups, or `Members` of one, None for all replicas. Not usable in SPMD mode
    (AssertionError).
    """

    Options = meshes.Options

    def __init__(
        self,
        prefix_store: Store | None = None,
        rank: int = 0,
        size: int = 1,
        timeout: timedelta = dist.default_pg_timeout,
        *,
        groups: ReplicaGroups = None,
        generation: int = 0,
    ) -> None:
        super().__init__(rank, size)
        if is_spmd():
            raise AssertionError("the torch.distributed backend xla is for replicas, SPMD mode has one program over all devices")
        self.groups = groups
        self._store = prefix_store
        self._timeout = timeout
        self._generation = generation
        self._name = self._description = ""
        own_ordinal = ordinal()
        self.members = list(range(size)) if groups is None else list(next(group for group in groups if own_ordinal in group))
        # The names of torch begin anew with each default group.
        self.mailbox = Mailbox(lambda: f"{generation}.{self._name}", self.members, timeout.total_seconds())

    def getBackendName(self) -> str:
        """`xla`."""
        return "xla"

    def get_group_store(self) -> Store | None:
        """The store that the group was made with."""
        return self._store

    def setGroupName(self, name: str) -> None:
        """Torch names each group; the base class would leave that to a backend object, of which there is none."""
        self._name = name
        named[name] = self

    def getGroupName(self) -> str:
        """The name by which torch's functional collectives find this group."""
        return self._name

    def setGroupDesc(self, description: str) -> None:
        """Set the group's description."""
        self._description = description

    def getGroupDesc(self) -> str:
        """The description that `setGroupDesc` set."""
        return self._description

    def _get_backend(self, device: torch.device) -> SplittingBackend:
        """The backend that torch asks about splitting. Raises RuntimeError for other devices than xla."""
        if torch.device(device).type != "xla":
            raise RuntimeError(f"no backend for {device} in a process group of backend xla")
        return SplittingBackend(self)

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroupXla | None:
        """The group of some ranks of this one, which only its members use; None for those that are not in it."""
        if self.rank() not in ranks:
            return None
        members = tuple(self.members[rank] for rank in ranks)
        groups = None if members == tuple(range(world_size())) else Members([members])
        subgroup = type(self)(
            self._store,
            list(ranks).index(self.rank()),
            len(ranks),
            timeout or self._timeout,
            groups=groups,
            generation=self._generation,
        )
        subgroup.setGroupName(group_name or f"{self._name}:split:{','.join(map(str, members))}")
        subgroup.setGroupDesc(group_desc or "undefined")
        return subgroup

    def _start_coalescing(self, device: torch.device) -> None:
        """Nothing: what is recorded runs together anyway."""

    def _end_coalescing(self, device: torch.device) -> Work:
        return RecordedWork([])

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        """Reduce tensors in place."""
        listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        op, scale = self._reduction(opts)
        device_tensors = [_on_device(tensor) for tensor in listed]
        xm.all_reduce(op, device_tensors, scale=scale, groups=self.groups, pin_layout=False)
        _copy_back(listed, device_tensors)
        return RecordedWork(listed)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Fill the list `outputs[i]` with input i of each member; these may be of several shapes, which the list has."""
        for parts, tensor in zip(outputs, inputs, strict=True):
            if len(parts) != self.size():
                raise RuntimeError(f"all_gather: {len(parts)} outputs for {self.size()} members")
            _check_elements("all_gather", parts[self.rank()].numel(), tensor.numel())
            for output, part in zip(parts, gather_unlike(_on_device(tensor), [output.shape for output in parts], self.groups), strict=True):
                _fill(output, part)
        return RecordedWork(outputs)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Fill `outputs[member][i]` with input i of each member."""
        gathered = xm.all_gather([_on_device(tensor).unsqueeze(0) for tensor in inputs], groups=self.groups, pin_layout=False)
        for rank, listed in enumerate(outputs):
            for output, parts in zip(listed, gathered, strict=True):
                _fill(output, parts[rank])
        return RecordedWork(outputs)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """Fill `output` with the members' tensors in line."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """`all_gather_single` for each pair."""
        for output, tensor in zip(outputs, inputs, strict=True):
            _check_elements("all_gather_single", output.numel(), self.size() * tensor.numel())
        gathered = xm.all_gather([one_dim(_on_device(tensor)) for tensor in inputs], groups=self.groups, pin_layout=False)
        for output, result in zip(outputs, gathered, strict=True):
            _fill(output, result)
        return RecordedWork(outputs)

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        """Overwrite the tensors with the root's values."""
        device_tensors = [_on_device(tensor) for tensor in tensors]
        broadcast_from(self._root(opts, "broadcast"), device_tensors, self.groups)
        _copy_back(tensors, device_tensors)
        return RecordedWork(tensors)

    def reduce(self, tensors: Any, opts: Any = None) -> Work:
        """Set the root's tensors to the reduction; the others stay."""
        op, scale = self._reduction(opts)
        root = self._root(opts, "reduce")
        for tensor in tensors:
            reduced = xm.all_reduce(op, _on_device(tensor), scale=scale, groups=self.groups, pin_layout=False)
            if self.rank() == root:
                _receive(tensor, reduced)
        self._run_for_the_root()
        return RecordedWork(tensors)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """`outputs[i]` becomes this member's part of the reduced list `inputs[i]`, whose tensors may be of several shapes."""
        op, scale = self._reduction(opts)
        for output, listed in zip(outputs, inputs, strict=True):
            if len(listed) != self.size():
                raise RuntimeError(f"reduce_scatter: {len(listed)} inputs for {self.size()} members")
            _check_elements("reduce_scatter", output.numel(), listed[self.rank()].numel())
            _fill(output, scatter_unlike([_on_device(tensor) for tensor in listed], self.rank(), op, scale, self.groups))
        return RecordedWork(outputs)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """`output` becomes this member's part of the reduced tensor, cut along dimension 0."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """`reduce_scatter_single` for each pair."""
        op, scale = self._reduction(opts)
        for output, tensor in zip(outputs, inputs, strict=True):
            _check_elements("reduce_scatter_single", self.size() * output.numel(), tensor.numel())
        listed = [_on_device(tensor).reshape(-1) for tensor in inputs]
        results = xm.reduce_scatter(op, listed, scale, 0, self.size(), groups=self.groups, pin_layout=False)
        for output, result in zip(outputs, results, strict=True):
            _fill(output, result)
        return RecordedWork(outputs)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Tensor j goes to member j; of any shapes, as long as each finds the one with as many elements there."""
        if not len(inputs) == len(outputs) == self.size():
            raise RuntimeError(f"all_to_all: {len(inputs)} inputs and {len(outputs)} outputs for {self.size()} members")
        expected = [output.numel() for output in outputs]
        received = exchange_unlike([_on_device(tensor) for tensor in inputs], expected, self.mailbox.exchange, self.groups)
        for output, part in zip(outputs, received, strict=True):
            _receive(output, part)
        return RecordedWork(outputs)

    def all_to_all_single(self, output: torch.Tensor, tensor: torch.Tensor, output_sizes: Any, input_sizes: Any, opts: Any = None) -> Work:
        """Part j of dimension 0 goes to member j. Sizes on one member, if only equal ones, need sizes on all."""
        parts = parts_of(_on_device(tensor), input_sizes or (), self.size())
        output_parts = parts_of(output, output_sizes or (), self.size())
        if input_sizes or output_sizes:
            received = exchange_unlike(parts, [output_part.numel() for output_part in output_parts], self.mailbox.exchange, self.groups)
            for output_part, part in zip(output_parts, received, strict=True):
                _receive(output_part, part)
        else:
            _check_elements("all_to_all_single", output.numel(), tensor.numel())
            _receive(output, xm.all_to_all(_on_device(tensor), 0, 0, self.size(), groups=self.groups, pin_layout=False))
        return RecordedWork([output])

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """The root fills its list with the members' tensors."""
        root = self._root(opts, "gather")
        for index, tensor in enumerate(inputs):
            gathered = xm.all_gather(_on_device(tensor).unsqueeze(0), groups=self.groups, pin_layout=False)
            if self.rank() == root:
                for output, part in zip(outputs[index], gathered.unbind(0), strict=True):
                    _fill(output, part)
        self._run_for_the_root()
        return RecordedWork(outputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Member j gets tensor j of the root's list."""
        root = self._root(opts, "scatter")
        for index, output in enumerate(outputs):
            is_root = self.rank() == root
            stacked = torch.stack([_on_device(tensor) for tensor in inputs[index]]) if is_root else self._zeros_for(output)
            received = xm.all_to_all(stacked, 0, 0, self.size(), groups=self.groups, pin_layout=False)
            _receive(output, received[root])
        return RecordedWork(outputs)

    def send(self, tensors: Any, destination: int, tag: int = 0) -> Work:
        """Send through the job's store: for small tensors. Returns without waiting for the other side."""
        for tensor in tensors:
            self.mailbox.send(tensor, destination, tag)
        return RecordedWork(tensors)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        """Fill a tensor with the next one that the source sends, when the result is waited for."""
        (tensor,) = tensors
        return ReceivingWork(tensor, *self.mailbox.receiver(tensor, source, tag))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """As `recv`, from whichever member sends first."""
        (tensor,) = tensors
        return ReceivingWork(tensor, *self.mailbox.receiver(tensor, None, tag))

    def barrier(self, opts: Any = None) -> Work:
        """Wait until all members are here; what is pending runs first."""
        torch_xla.sync()
        self.mailbox.exchange("barrier", self.rank())
        return RecordedWork([])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """As `barrier`. Raises ReplicaTimeoutError (a RuntimeError) that names all replicas that do not arrive within `timeout`."""
        torch_xla.sync()
        self.mailbox.exchange("monitored_barrier", self.rank(), timeout.total_seconds() if timeout else None)

    def _reduction(self, opts: Any) -> tuple[str, float]:
        op, scale = parse_torch_reduce_op(_pick(opts, "reduceOp", ReduceOp.SUM), self.size())
        return op.value, scale

    def _root(self, opts: Any, collective: str) -> int:
        root = int(_pick(opts, "rootRank", 0))
        if not 0 <= root < self.size():
            raise RuntimeError(f"{collective}: root rank {root} is not one of the group's {self.size()} ranks")
        return root

    def _run_for_the_root(self) -> None:
        """Run the collective now: only the root may ever read its result, and all programs must hold the same collectives."""
        if not isinstance(self.groups, Members):
            torch_xla.sync()

    def _zeros_for(self, output: torch.Tensor) -> torch.Tensor:
        return torch.zeros((self.size(), *output.shape), dtype=output.dtype, device="xla")

    # Names of the same methods in other releases of torch.
    allreduce_coalesced = allreduce
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


never_trace_methods(ProcessGroupXla)  # torch's own are C++

# The groups of this process by their names, as long as somebody has them.
named: weakref.WeakValueDictionary[str, ProcessGroupXla] = weakref.WeakValueDictionary()

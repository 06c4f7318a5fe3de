"""Backend `xla` of `torch.distributed`: the collectives of device `xla` behind torch's process groups."""

from __future__ import annotations

import io
import warnings
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroup, ReduceOp, Work

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from xla_core.abi.collectives import parse_torch_reduce_op
from xla_distributed._compat import never_trace_methods
from xla_distributed.collectives.groups import Members, ReplicaGroups, groups_of
from xla_distributed.collectives.ops.broadcast import broadcast_from
from xla_distributed.job import connection
from xla_distributed.process_groups import meshes

# A Python process group takes tensor lists and options; torch's stubs list the overloads of the C++ class besides.
_Base: Any = ProcessGroup
Tensors = Sequence[torch.Tensor]


class _Recorded(Work):
    """A collective that was recorded: its results are there, as lazily as any other."""

    def __init__(self, results: Any) -> None:
        super().__init__()
        self._results = results

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True: whoever reads the results waits for them."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True: failures show where results are read."""
        return True

    def result(self) -> Any:
        """The tensors."""
        return self._results

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that is done."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._results)
        return future


def _pick(options: Any, name: str, default: Any) -> Any:
    return default if options is None else getattr(options, name)


def _here(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's data on the device; torch's object collectives bring CPU tensors."""
    return tensor.detach().to("xla")


def _back(tensors: Tensors, moved: Tensors) -> None:
    """Copy results to those tensors that are not on the device themselves."""
    for tensor, result in zip(tensors, moved, strict=True):
        if tensor.device.type != "xla":
            tensor.copy_(result)


def one_dim(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, with a dimension if it has none."""
    return tensor.reshape(1) if tensor.dim() == 0 else tensor


def check_parts(tensor: torch.Tensor, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> None:
    """Raise NotImplementedError for an exchange of parts that are not of one size, RuntimeError for parts of another tensor."""
    if len({*input_sizes, *output_sizes}) > 1:
        raise NotImplementedError(
            f"all_to_all on xla devices has equal parts only, got {list(input_sizes)} and {list(output_sizes)}: pad them"
        )
    if input_sizes and sum(input_sizes) != tensor.size(0):
        raise RuntimeError(f"all_to_all: the parts {list(input_sizes)} do not make up the {tensor.size(0)} rows of the tensor")


def _fill(output: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return output.copy_(result.reshape(output.shape))


class ProcessGroupXla(_Base):  # type: ignore[misc]
    """The replicas of this process's job, or a part of them; or of several groups that all issue their collectives together, one.

    Not usable in SPMD mode (AssertionError).
    """

    def __init__(self, rank: int, size: int, groups: ReplicaGroups = None) -> None:
        super().__init__(rank, size)
        if xr.is_spmd():
            raise AssertionError("the torch.distributed backend xla is for replicas, SPMD mode has one program over all devices")
        self.groups = groups
        self._name = self._description = ""

    def getBackendName(self) -> str:
        """`xla`."""
        return "xla"

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
        """As `setGroupDesc` said."""
        return self._description

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        """Reduce tensors in place."""
        listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        op, scale = parse_torch_reduce_op(_pick(opts, "reduceOp", ReduceOp.SUM), self.size())
        moved = [_here(tensor) for tensor in listed]
        xm.all_reduce(op.value, moved, scale=scale, groups=self.groups, pin_layout=False)
        _back(listed, moved)
        return _Recorded(listed)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        """Raises NotImplementedError."""
        raise NotImplementedError("allreduce_coalesced: all_reduce of a list is coalesced already; use torch_xla's xm.all_reduce")

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Fill the list `outputs[i]` with input i of each member."""
        for listed, tensor in zip(outputs, inputs, strict=True):
            gathered = xm.all_gather(_here(tensor).unsqueeze(0), groups=self.groups, pin_layout=False)
            for output, part in zip(listed, gathered.unbind(0), strict=True):
                _fill(output, part)
        return _Recorded(outputs)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Fill `outputs[member][i]` with input i of each member."""
        gathered = xm.all_gather([_here(tensor).unsqueeze(0) for tensor in inputs], groups=self.groups, pin_layout=False)
        for place, listed in enumerate(outputs):
            for output, parts in zip(listed, gathered, strict=True):
                _fill(output, parts[place])
        return _Recorded(outputs)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """Fill `output` with the members' tensors in line."""
        _fill(output, xm.all_gather(one_dim(_here(tensor)), groups=self.groups, pin_layout=False))
        return _Recorded([output])

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """`all_gather_single` for each pair."""
        gathered = xm.all_gather([one_dim(_here(tensor)) for tensor in inputs], groups=self.groups, pin_layout=False)
        for output, result in zip(outputs, gathered, strict=True):
            _fill(output, result)
        return _Recorded(outputs)

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        """Tensors take the root's values in place."""
        moved = [_here(tensor) for tensor in tensors]
        broadcast_from(_pick(opts, "rootRank", 0), moved, self.groups)
        _back(tensors, moved)
        return _Recorded(tensors)

    def reduce(self, tensors: Any, opts: Any = None) -> Work:
        """The root's tensors become the reduction, the others stay."""
        op, scale = parse_torch_reduce_op(_pick(opts, "reduceOp", ReduceOp.SUM), self.size())
        for tensor in tensors:
            reduced = xm.all_reduce(op.value, _here(tensor), scale=scale, groups=self.groups, pin_layout=False)
            if self.rank() == opts.rootRank:
                _fill(tensor, reduced)
        torch_xla.sync()  # others than the root may never read what depends on it, and programs must hold the same collectives
        return _Recorded(tensors)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """`outputs[i]` becomes this member's part of the reduced list `inputs[i]`, whose tensors are of one shape."""
        for output, listed in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, torch.stack([_here(tensor) for tensor in listed]), opts)
        return _Recorded(outputs)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """`output` becomes this member's part of the reduced tensor, cut along dimension 0."""
        op, scale = parse_torch_reduce_op(_pick(opts, "reduceOp", ReduceOp.SUM), self.size())
        _fill(output, xm.reduce_scatter(op.value, _here(tensor), scale, 0, self.size(), groups=self.groups, pin_layout=False))
        return _Recorded([output])

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """`reduce_scatter_single` for each pair."""
        op, scale = parse_torch_reduce_op(_pick(opts, "reduceOp", ReduceOp.SUM), self.size())
        listed = [_here(tensor) for tensor in inputs]
        results = xm.reduce_scatter(op.value, listed, scale, 0, self.size(), groups=self.groups, pin_layout=False)
        for output, result in zip(outputs, results, strict=True):
            _fill(output, result)
        return _Recorded(outputs)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Tensor j goes to member j; all are of one shape."""
        shapes = {tuple(tensor.shape) for tensor in (*inputs, *outputs)}
        if len(shapes) > 1:
            raise NotImplementedError(f"all_to_all on xla devices needs tensors of one shape, got {sorted(shapes)}: pad them")
        stacked = torch.stack([_here(tensor) for tensor in inputs])
        received = xm.all_to_all(stacked, 0, 0, self.size(), groups=self.groups, pin_layout=False)
        for output, part in zip(outputs, received.unbind(0), strict=True):
            _fill(output, part)
        return _Recorded(outputs)

    def all_to_all_single(self, output: torch.Tensor, tensor: torch.Tensor, output_sizes: Any, input_sizes: Any, opts: Any = None) -> Work:
        """Part j of dimension 0 goes to member j; equal parts only."""
        check_parts(tensor, input_sizes or (), output_sizes or ())
        _fill(output, xm.all_to_all(_here(tensor), 0, 0, self.size(), groups=self.groups, pin_layout=False))
        return _Recorded([output])

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """The root fills its list with the members' tensors."""
        for place, tensor in enumerate(inputs):
            gathered = xm.all_gather(_here(tensor).unsqueeze(0), groups=self.groups, pin_layout=False)
            if self.rank() == opts.rootRank:
                for output, part in zip(outputs[place], gathered.unbind(0), strict=True):
                    _fill(output, part)
        torch_xla.sync()  # as in `reduce`
        return _Recorded(outputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """JobClient j gets tensor j of the root's list."""
        for place, output in enumerate(outputs):
            mine = self.rank() == opts.rootRank
            brought = torch.stack([_here(tensor) for tensor in inputs[place]]) if mine else self._nothing(output)
            received = xm.all_to_all(brought, 0, 0, self.size(), groups=self.groups, pin_layout=False)
            _fill(output, received[opts.rootRank])
        return _Recorded(outputs)

    def send(self, tensors: Any, destination: int, tag: int = 0) -> Work:
        """Send through the job's store: for small tensors. The other side must `recv`."""
        _warn_of_point_to_point()
        target = self._ordinal(destination)
        for tensor in tensors:
            file = io.BytesIO()
            torch.save(_here(tensor).cpu(), file)
            connection.job_client().post(target, f"tensor from {xr.global_ordinal()} with tag {tag}", file.getvalue())
        return _Recorded(tensors)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        """Fill tensors with what the source sends; waits for it."""
        _warn_of_point_to_point()
        sender = self._ordinal(source)
        for tensor in tensors:
            payload = connection.job_client().take(sender, f"tensor from {sender} with tag {tag}", connection.timeout())
            _fill(tensor, torch.load(io.BytesIO(payload), weights_only=True).to(tensor.device))
        return _Recorded(tensors)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Raises NotImplementedError."""
        raise NotImplementedError("recv on xla devices needs a source")

    def barrier(self, opts: Any = None) -> Work:
        """Wait until all members are here; what is pending runs first."""
        torch_xla.sync()
        if self.size() > 1:
            members = [self._ordinal(rank) for rank in range(self.size())]
            what = f"barrier of replicas {members}"
            connection.job_client().exchange(what, b"", connection.timeout(), f"{what}, replica {xr.global_ordinal()}", members)
        return _Recorded([])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError("monitored_barrier: barrier on xla devices names the replicas that do not arrive; use it")

    def _nothing(self, output: torch.Tensor) -> torch.Tensor:
        return torch.zeros((self.size(), *output.shape), dtype=output.dtype, device="xla")

    def _ordinal(self, rank: int) -> int:
        """The ordinal of a member of this group."""
        if self.groups is None:
            return rank
        if isinstance(self.groups, Members):
            return self.groups.ordinals[rank]
        return next(group for group in self.groups if xr.global_ordinal() in group)[rank]

    # Names of the same methods in other releases of torch.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


never_trace_methods(ProcessGroupXla)  # torch's own are C++

# The groups of this process by their names, as long as somebody has them.
named: weakref.WeakValueDictionary[str, ProcessGroupXla] = weakref.WeakValueDictionary()
_warned = False


def _warn_of_point_to_point() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn("send and recv on xla devices go through the job's store, on the host: for small tensors only", stacklevel=4)


def create(options: Any, group_options: Any = None) -> ProcessGroupXla:
    """The process group for torch: over all replicas, or some of them.

    group_options: `{"xla_pg_options": {"mesh": [[0, 1], [2, 3]]}}` for one of several groups that all issue their collectives together,
    in one program; `{"xla_pg_options": {"spmd": True}}` to infer the mesh. Without them only the members issue them.
    """
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    count = int(xr.world_size())
    groups = meshes.groups_for(ranks, count, (group_options or {}).get("xla_pg_options", {}) if isinstance(group_options, dict) else {})
    if groups is not None:
        groups_of(groups)
    return ProcessGroupXla(options.group_rank, options.group_size, groups)

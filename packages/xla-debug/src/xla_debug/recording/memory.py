"""Monitor device memory: the line that allocated each buffer, the container that holds it, and growth from step to step."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import jax

from xla_debug.core import events, job, process
from xla_debug.core import graph as graph_abi
from xla_debug.core import metrics as metrics_abi
from xla_debug.recording.holders import holder_of, holders_of, main_file
from xla_debug.run_report.schema import DeviceMemory, Finding, Live, Memory, Problem

_SHOWN = 20
_NAMED = 5
"""The largest groups of live buffers for which the container is looked up."""
_GROWTH = 0.1
"""Tensors added per step, from which memory counts as growing. A turn of a loop may be several steps."""

_SNAPSHOT_SHARE = 0.005
"""Share of the run that snapshots may take."""
_SECONDS_PER_BLOCK = 0.3e-6
"""Estimated time of a snapshot for each block of memory that Python has allocated, until a snapshot has been measured."""

_NESTED = 3
"""Levels of nested containers to look through: a list of dicts of tuples."""

_UNKNOWN: Any = object()


class AllocationSites:
    """Knows the line that made each buffer, a program's result or an upload."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: deque[tuple[Sequence[str | None], tuple[int, ...]]] = deque()
        self._sites: dict[int, tuple[str | None, weakref.ref[jax.Array]]] = {}
        self._live_counts: list[tuple[int, Counter[str]]] = []

    def wrap(self, graph: graph_abi.Graph, executable: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a program, for `abi.graph.register_wrapper`, to note the buffers that each execution returns."""
        lines = [None if operation is None else operation.line for operation in graph.results()]
        append = self._new.append

        # This runs at each execution in the user's thread: only one append, which `update` sorts later. Ids rather than references:
        # thousands of these between two recordings would cost the garbage collector more than all else here.
        def run(*arguments: Any) -> Any:
            results = executable(*arguments)
            append((lines, tuple(map(id, results))))
            return results

        return run

    def add_upload(self, event: events.TransferEvent) -> None:
        """Note a buffer that was uploaded to a device."""
        if event.buffer is not None and event.direction is events.Direction.TO_DEVICE:
            self._new.append(([event.line], (id(event.buffer),)))

    def update(self) -> None:
        """Keep the noted buffers that are alive: most are gone already, and later buffers may have their ids."""
        with self._lock:
            noted: dict[int, str | None] = {}
            # Buffers noted meanwhile wait for the next call: `live_arrays` may not have seen them.
            for _ in range(len(self._new)):
                lines, ids = self._new.popleft()
                # The last result of a program, its token, has no line. It is noted without one: else it would count for the line of an
                # earlier buffer with its id, and running programs keep many tokens.
                noted.update(zip_longest(ids, lines[: len(ids)]))
            if noted:
                for array in jax.live_arrays(process.client().devices[0].platform):
                    line = noted.get(id(array), _UNKNOWN)
                    if line is not _UNKNOWN:
                        self._sites[id(array)] = (line, weakref.ref(array))
            # A new dict, since `line` reads it without the lock.
            self._sites = {key: site for key, site in self._sites.items() if site[1]() is not None}

    def line(self, array: jax.Array) -> str | None:
        """The line that allocated a buffer; None if unknown."""
        line, reference = self._sites.get(id(array), (None, None))
        # Ids are used again: the entry may be of a buffer that is gone.
        return line if reference is not None and reference() is array else None

    def count(self, step: int) -> None:
        """Count the live buffers of each line at the end of `step`."""
        self.update()
        sites = list(self._sites.values())  # a copy, since the thread that writes recordings may add to the dict meanwhile
        alive = Counter(line for line, _ in sites if line is not None)
        self._live_counts.append((step, alive))

    def live(self) -> list[metrics_abi.LiveBuffer]:
        """The live buffers, without their tensors: cheap, since the garbage collector is not asked for these."""
        client = process.client()
        names = {} if job.is_spmd() else {device: f"xla:{index}" for index, device in enumerate(client.devices)}
        arrays = [array for _, reference in self._sites.copy().values() if (array := reference()) is not None and not array.is_deleted()]
        return [metrics_abi.LiveBuffer(names.get(min(array.devices(), key=_device_id), "xla:0"), array, ()) for array in arrays]

    def growing(self) -> dict[str, float]:
        """The lines whose live buffers grew at each of the last three counts, with the growth per step."""
        if len(self._live_counts) < 3:
            return {}
        (start, first), (_, second), (end, last) = self._live_counts[-3:]
        per_step = {line: (last[line] - first[line]) / (end - start) for line in last}
        return {line: rate for line, rate in per_step.items() if first[line] < second[line] < last[line] and rate >= _GROWTH}


class MemoryMonitor:
    """Counts live buffers at steps 4, 8, 16, …, and takes a snapshot when they grow, or when that costs little of the run's time."""

    def __init__(self) -> None:
        self.allocation_sites = AllocationSites()
        self.live: list[Live] = []
        self.finding: Finding | None = None
        self.next_step = 4
        """The step after which to count again."""
        self._largest_total = -1
        self._peaks: Counter[str] = Counter()
        self._started = time.perf_counter()
        self._snapshot_s = self._last_snapshot_s = 0.0
        main_file()

    def after_step(self, step: int) -> bool:
        """Count or take a snapshot if it is time; True if so. Call it in the step's thread, whose frames name the containers of tensors."""
        if step < self.next_step:
            return False
        self.next_step = 2 * step
        self.allocation_sites.count(step)
        self._keep_largest(self.allocation_sites.live(), with_holders=False)
        expected_s = self._last_snapshot_s or _SECONDS_PER_BLOCK * sys.getallocatedblocks()
        cheap = self._snapshot_s + expected_s <= _SNAPSHOT_SHARE * (time.perf_counter() - self._started)
        if cheap or self.finding is None and self.allocation_sites.growing():
            self.take_snapshot()
        return True

    def take_snapshot(self) -> None:
        """Ask the garbage collector for the live buffers and the containers that hold them."""
        begin = time.perf_counter()
        self.allocation_sites.update()
        buffers = metrics_abi.live_buffers()
        self._keep_largest(buffers, with_holders=True)
        growing = self.allocation_sites.growing()
        if growing:
            self.finding = self._explain(growing, buffers) or self.finding
        self._last_snapshot_s = time.perf_counter() - begin
        self._snapshot_s += self._last_snapshot_s

    def _keep_largest(self, buffers: list[metrics_abi.LiveBuffer], with_holders: bool) -> None:
        """Keep the buffers if they have more bytes than any before, or as many and `with_holders`: their containers are known."""
        total = sum(buffer.array.nbytes for buffer in buffers)
        if total > self._largest_total or with_holders and total == self._largest_total:
            self._largest_total = total
            self.live = self._group(buffers)

    def _group(self, buffers: list[metrics_abi.LiveBuffer]) -> list[Live]:
        groups: dict[tuple[str | None, str, str], list[metrics_abi.LiveBuffer]] = {}
        for buffer in buffers:
            key = (self.allocation_sites.line(buffer.array), buffer.device, f"{buffer.array.dtype}{list(buffer.array.shape)}")
            groups.setdefault(key, []).append(buffer)
        largest = sorted(groups.items(), key=lambda group: -sum(buffer.array.nbytes for buffer in group[1]))[:_SHOWN]
        holders = holders_of([group for _, group in largest[:_NAMED]])
        return [
            Live(line, device, shape, len(group), sum(buffer.array.nbytes for buffer in group), None if holder is None else holder.text)
            for ((line, device, shape), group), holder in zip_longest(largest, holders)
        ]

    def _explain(self, growing: dict[str, float], buffers: list[metrics_abi.LiveBuffer]) -> Finding | None:
        """Make the finding of growing memory. Of lines that grow together, the one whose tensors the user's container holds is the cause.

        None if no tensor shows a buffer of these lines.
        """
        groups: dict[str, list[metrics_abi.LiveBuffer]] = {}
        for buffer in buffers:
            line = self.allocation_sites.line(buffer.array)
            if line in growing:
                groups.setdefault(line, []).append(buffer)
        if not groups:
            return None
        bytes_of = {line: sum(buffer.array.nbytes for buffer in group) for line, group in groups.items()}
        holders = {line: holder for line, group in groups.items() if (holder := holder_of(group, depth=_NESTED)) is not None}
        line = max(holders or groups, key=bytes_of.__getitem__)
        count, total = len(groups[line]), sum(bytes_of.values())
        per_step = sum(growing[growing_line] * bytes_of[growing_line] / len(group) for growing_line, group in groups.items())
        holder = holders.get(line)
        prefix = f"memory grows by {per_step:,.0f} bytes a step: "
        if holder is None:
            text, finding_line = f"{prefix}{count} tensors made here are held", line
        else:
            appends = holder.appended_at()
            text, finding_line = (
                f"{prefix}{holder.text} has {count} tensors made {f'at {os.path.basename(line)}' if appends else 'here'}",
                appends or line,
            )
        if len(groups) > 1:
            text += f"; what they were computed from stays with them, {total:,} bytes in all"
        return Finding(
            Problem.MEMORY,
            finding_line,
            text,
            "keep numbers, not tensors: store loss.detach() and read all in one go, or add up on the device; drop what is not needed",
        )

    def memory(self) -> Memory:
        """The memory of devices now and at its peak, and the largest live buffers."""
        self.allocation_sites.update()
        return Memory([self._device(device) for device in process.client().devices], live=self.live)

    def _device(self, device: jax.Device) -> DeviceMemory:
        stats = device.memory_stats() or {}
        used = int(stats["bytes_in_use"]) if "bytes_in_use" in stats else bytes_on(device)
        self._peaks[str(device)] = peak = max(self._peaks[str(device)], used, int(stats.get("peak_bytes_in_use", 0)))
        return DeviceMemory(str(device), used, peak, int(stats.get("bytes_limit", 0)))


def _device_id(device: jax.Device) -> int:
    return int(device.id)


def bytes_on(device: jax.Device) -> int:
    """Add up the bytes of live buffers on a device that does not report its memory."""
    shards = (shard for array in jax.live_arrays(device.platform) if not array.is_deleted() for shard in array.addressable_shards)
    return sum(shard.data.nbytes for shard in shards if shard.device == device)

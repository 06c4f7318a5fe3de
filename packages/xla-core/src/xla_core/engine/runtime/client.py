"""The PJRT client behind the `xla` device: started at first use, one per process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import torch

from xla_core.base import config, metrics, timer_signal
from xla_core.base.errors import DeviceIndexError, ExecutionError, UnknownDeviceError
from xla_core.base.private_jax import import_dialects, leave_runtime_to_parent
from xla_core.engine.graph import rng
from xla_core.engine.graph.pending_graph import NO_LIMIT, ForkedPendingGraph, Lock, Recorder, forked_error
from xla_core.engine.placement.placement import Mesh, Placement, Replicas, over_mesh
from xla_core.engine.placement.target import Target, attached
from xla_core.engine.runtime import placing

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Client:
    """The devices that this process addresses, or those of a target, and one recorder for each.

    kind: hardware kind in upper case (`CPU`, `CUDA`, `TPU`, …).
    devices: those that this process addresses; of a target that is not attached, all but those of other replicas.
    placements: for each recorder, where its data is: on one device; among replicas in several processes, this process's shard of a
        "replicated" global array of the local shape, whose shards differ (so that programs may have collectives); in SPMD mode, where
        `xla:0` stands for all devices of the job, replicated over them unless a sharding was set for the data.
    """

    kind: str
    target: Target
    devices: tuple[jax.Device, ...]
    recorders: tuple[Recorder, ...]
    placements: tuple[Placement, ...]

    @property
    def default_shardings(self) -> tuple[jax.sharding.Sharding, ...]:
        """For each recorder, the sharding of buffers without a sharding of their own."""
        return tuple(placement.sharding for placement in self.placements)


_lock = threading.Lock()
_client: Client | None = None
_placed: dict[Recorder, Placement] = {}  # of all clients: tensors of a target outlive its block
_forked = False  # from a process whose client ran
_admit: Callable[[], Client] | None = None  # set once only one thread may use the client
_eager: bool | None = None


def started() -> bool:
    """Whether the client runs."""
    return _client is not None or _admit is not None


def client() -> Client:
    """The process's client; starts it if needed.

    Raises UnknownDeviceError if `PJRT_DEVICE` names no hardware of jaxlib, ExecutionError in a child of `os.fork` whose parent has one.
    """
    global _client
    # Read once: at the end of the process another thread sets it to None, perhaps between a test and a return.
    running = _client
    if running is None:
        if _forked:
            raise forked_error()
        if _admit is not None:
            return _admit()
        with _lock:
            if _client is None:
                _client = _start()
            running = _client
    return running


def _leave_to_parent() -> None:
    """Drop the client in a child of `os.fork`: the threads that run programs are the parent's, and a lock may stay locked for ever."""
    global _client, _lock, _forked
    _lock = threading.Lock()
    if _client is not None:
        for recorder in _client.recorders:
            recorder.lock = threading.RLock()
            # Tensors from before the fork reach it without calling `client()`.
            recorder.pending_graph = ForkedPendingGraph()
        _client, _forked = None, True
    # The user's own JAX code, and a job that was just joined, have threads without a client of ours.
    leave_runtime_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


class _GuardedLock:
    """The lock of a recorder that calls a guard before it is taken."""

    def __init__(self, lock: Lock, guard: Callable[[], Any]) -> None:
        self._lock = lock
        self._guard = guard
        self.release = lock.release

    def acquire(self, blocking: bool = True) -> bool:
        # First: a thread that ends or waits in the guard must not hold the lock.
        self._guard()
        return self._lock.acquire(blocking)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: Any) -> None:
        self.release()


def keep_to_this_thread() -> None:
    """Let no other thread use devices any more: its next use raises SystemExit, each use after that waits for ever."""
    global _client, _admit
    with _lock:
        running, only, refused = _client, threading.get_ident(), set[int]()
        if running is None:
            return
        never = threading.Lock()
        never.acquire()

        def admit() -> Client:
            thread = threading.get_ident()
            if thread != only:
                if thread in refused:
                    never.acquire()
                refused.add(thread)
                raise SystemExit
            return running

        for recorder in running.recorders:
            recorder.lock = _GuardedLock(recorder.lock, admit)
        # Without a client, `client()` calls the guard.
        _client, _admit = None, admit


def check_thread() -> None:
    """End the calling thread if it may not use devices any more."""
    if _admit is not None:
        _admit()


def eager() -> bool:
    """Whether operations run as they are recorded."""
    return config.USE_EAGER_DEBUG_MODE.get() if _eager is None else _eager


def set_eager(on: bool) -> None:
    """Run operations as they are recorded, or record them only; on all devices, started or not."""
    global _eager
    with _lock:
        # Under the lock, as a start is: a client that starts meanwhile either reads the new setting or is changed below.
        _eager = on
        for recorder in () if _client is None else _client.recorders:
            _set_mode(recorder, on)


def _set_mode(recorder: Recorder, eager: bool) -> None:
    recorder.eager = eager
    recorder.loop = None
    recorder.allow(0 if eager else config.MAX_PENDING.get() or NO_LIMIT)


def set_seed_everywhere(seed: int) -> None:
    """Set the random state of all devices, also for a client that starts later. Negative seeds wrap as in torch."""
    rng.set_initial_seed(seed)
    for recorder in client().recorders if started() else ():
        recorder.seed = rng.initial_seed()


_before_start: list[Callable[[], object]] = []


def before_start(hook: Callable[[], object]) -> Callable[[], None]:
    """Call `hook` before this process's client starts, to connect it to others; returns a function that removes it.

    The hook must not use devices. Its errors reach whoever used the device first; the next use tries again.
    """
    _before_start.append(hook)
    return lambda: _before_start.remove(hook)


def device_kind() -> str | None:
    """The hardware kind that is or would be used; None if PJRT_DEVICE is not set and no default is allowed. Starts no client."""
    if _client is not None:
        return _client.kind
    if config.TARGET.get() is not None:
        return client().kind
    chosen = config.PJRT_DEVICE.get()
    if chosen is None:
        if not config.PJRT_SELECT_DEFAULT_DEVICE.get():
            return None
        chosen, unused = placing.default_kind()
        if unused is not None:
            _logger.warning("PJRT_DEVICE is not set: using %s, although %s", chosen, unused)
        config.PJRT_DEVICE.set(chosen)
    return chosen.split("_")[0].upper()


def _start() -> Client:
    name = config.TARGET.get()
    if name is not None:
        # Loaded when a target is asked for: `import torch_xla` needs none.
        from xla_core.engine.placement.topologies import target_named

        return planned(target_named(name))
    kind = device_kind()
    if kind is None:
        raise UnknownDeviceError("PJRT_DEVICE is not set and PJRT_SELECT_DEFAULT_DEVICE is 0: set PJRT_DEVICE to CPU, CUDA or TPU")
    platform = kind.lower()
    # Before jax has backends: afterwards, no job can be joined, and the number of CPU devices is fixed.
    for hook in _before_start:  # a hook may bring further ones
        hook()
    if kind == "CPU":
        placing.request_cpu_devices(config.CPU_NUM_DEVICES.get())
        if not config.PJRT_CPU_ASYNC_CLIENT.get():
            jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        devices = tuple(jax.local_devices(backend=platform))
    except RuntimeError as error:
        raise UnknownDeviceError(
            f"PJRT_DEVICE={kind}: jaxlib has no such devices here ({error}). Install the matching plugin or use CPU"
        ) from error
    if kind == "TPU":
        timer_signal.tell_python_that_it_is_ignored()
    if kind == "CPU":
        # The user's own JAX code may have asked for more.
        devices = devices[: config.CPU_NUM_DEVICES.get()]
    target = attached(devices)
    return _of_placements(kind, target, devices, placing.attached_placements(devices, platform, target))


def _of_placements(kind: str, target: Target, devices: tuple[jax.Device, ...], placements: tuple[Placement, ...]) -> Client:
    import_dialects()
    recorders = tuple(Recorder(index) for index in range(len(placements)))
    for recorder, placement in zip(recorders, placements, strict=True):
        _set_mode(recorder, eager())
        _placed[recorder] = placement
    return Client(kind, target, devices, recorders, placements)


def planned(target: Target) -> Client:
    """A client for devices that are not there, of the present mode: SPMD, this process as one of several replicas, or one by one."""
    placements = placing.planned_placements(target)
    devices = (placements[0].device,) if isinstance(placements[0], Replicas) else target.devices
    return _of_placements(placing.KINDS.get(target.platform, target.platform.upper()), target, devices, placements)


def exchange(other: Client | None) -> Client | None:
    """Let `other` be the client of this process (None: one that starts at its first use). Returns the one that was."""
    global _client
    with _lock:
        previous, _client = _client, other
        _current.index = 0
    return previous


def enter_spmd(order: Sequence[int] | None = None) -> Mesh:
    """Enter SPMD mode while the client runs; returns the placement from now on. order: indices of the devices (None: as they are)."""
    global _client
    with _lock:
        running = _client
        if running is None:
            raise ExecutionError("the client does not run: it starts in SPMD mode by itself")
        if _placed[running.recorders[0]].target is not running.target:
            raise ExecutionError("torch_xla.compile_only() has begun: enter SPMD mode before it")
        if not running.placements[0].is_mesh:
            metrics.counter_add("VirtualDeviceUsage")
        devices = placing.devices_of_job(running.devices)
        mesh = over_mesh(devices if order is None else devices[list(order)], running.devices, running.target)
        # The recorder stays the same object, with its pending graph: values refer to it.
        _placed[running.recorders[0]] = mesh
        _client = replace(running, recorders=running.recorders[:1], placements=(mesh,))
    return mesh


@contextmanager
def without_data(target: Target) -> Iterator[dict[Recorder, Placement]]:
    """Within the block, the devices of this process take no data, as those of `target`, which has the same. Gives their true placements."""
    placements = {recorder: _placed[recorder] for recorder in client().recorders}
    _placed.update({recorder: replace(placement, target=target) for recorder, placement in placements.items()})
    try:
        yield placements
    finally:
        _placed.update(placements)


def physical_device_count() -> int:
    """The number of devices of this process, also in SPMD mode. Starts the client, except on the CPU."""
    if _client is None and config.TARGET.get() is None and device_kind() == "CPU":
        return config.CPU_NUM_DEVICES.get()
    return len(client().devices)


def device_count() -> int:
    """The number of devices that this process addresses: in SPMD mode one. Starts the client as `physical_device_count` does."""
    return 1 if config.USE_SPMD.get() else physical_device_count()


def mend() -> None:
    """Drop what interrupted recordings left unfinished in the pending graphs. Starts no client."""
    for recorder in () if _client is None else _client.recorders:
        with recorder.lock:
            recorder.pending_graph.mend()


def recorder_at(index: int) -> Recorder:
    """The recorder of device `xla:index`; raises DeviceIndexError past the last device."""
    recorders = client().recorders
    if not 0 <= index < len(recorders):
        raise DeviceIndexError(
            f"xla:{index} does not exist: this process addresses {len(recorders)} device(s), xla:0 to xla:{len(recorders) - 1}"
        )
    return recorders[index]


class _Current(threading.local):
    """The default device of each thread."""

    index = 0


_current = _Current()


def current_index() -> int:
    """Index of this thread's default device."""
    return _current.index


_when_default_moves: list[Callable[[], None]] = []


def when_default_moves(action: Callable[[], None]) -> None:
    """Call `action` once, when a thread first makes another device than `xla:0` its default."""
    _when_default_moves.append(action)


def set_current_index(index: int) -> None:
    """Make `xla:index` this thread's default device; raises DeviceIndexError past the last."""
    if index == _current.index:
        return
    _current.index = recorder_at(index).index
    while index and _when_default_moves:
        _when_default_moves.pop()()


def current_recorder() -> Recorder:
    """The recorder of this thread's default device."""
    return recorder_at(_current.index)


def recorder_of(device: torch.device | str | int | None) -> Recorder:
    """The recorder behind `xla`, `xla:1`, a torch.device, an index, or (None) the default device.

    Raises UnknownDeviceError for a device that is not `xla` or does not exist, DeviceIndexError for such an integer.
    """
    if device is None:
        return current_recorder()
    if isinstance(device, int):
        return recorder_at(device)
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise UnknownDeviceError(f"{device!r} is no device: {error}") from None
    if parsed.type != "xla":
        raise UnknownDeviceError(f"{device} is no xla device; use 'xla' or 'xla:<index>'")
    if parsed.index is None:
        return current_recorder()
    try:
        return recorder_at(parsed.index)
    except DeviceIndexError as error:
        raise UnknownDeviceError(str(error)) from None


def jax_device(recorder: Recorder) -> jax.Device:
    """The jax device that `recorder` records for."""
    return placement_of(recorder).device


def placement_of(recorder: Recorder) -> Placement:
    """Where data and programs of `recorder`'s device are."""
    client()  # raises in a process forked from the one that has them
    return _placed[recorder]

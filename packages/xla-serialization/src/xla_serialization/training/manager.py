"""Save the steps of a run, at once or in the background; keep the latest, and save once more before a preemption."""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
import weakref
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from xla_serialization.checkpoint.chunks import Chunks, local_chunks
from xla_serialization.checkpoint.in_place import load_part
from xla_serialization.checkpoint.participants import Participants, any_of, group_participants
from xla_serialization.checkpoint.saving import write_chunks
from xla_serialization.checkpoint.snapshot import snapshot
from xla_serialization.checkpoint.state import FlatState, flatten
from xla_serialization.errors import FailedSaveError, MissingCheckpointError
from xla_serialization.format.per_process import PerProcess
from xla_serialization.training import preemption
from xla_serialization.training.steps import complete_steps, folder_of, retain

_log = logging.getLogger("torch_xla")
_Pending = dict[int, Future[None]]


class CheckpointManager:
    """Saves steps of a run in folders `path/<step>`, in the format of `xla_serialization.save`.

    Processes of one job make it together, and call its methods with the same steps in the same order. SIGTERM is noted only: what the first
    call with a new step finds is that step's answer. From there on `reached_preemption` is true, so that the caller may leave its loop, and
    `should_save` is, until a save has been made. The first call with a step after that one finishes the save and raises SystemExit(143),
    unless SIGTERM had a handler before, which is called when the signal comes, or was ignored. When a process ends, pending saves are
    finished; one that failed, and that no later call raised, is logged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        save_interval: int,
        max_to_keep: int | None = 0,
        max_pending_async: int | None = 1,
        num_of_threads: int | None = 1,
        process_group: dist.ProcessGroup | None = None,
        chkpt_on_preemption: bool = True,
    ) -> None:
        """path: a folder that all processes reach, made when needed. save_interval: steps that are multiples of it are saved.

        max_to_keep: checkpoints; when a new one is complete, those saved longest ago are removed (0: keep all). max_pending_async: copies
        of the state that wait to be written, at most. num_of_threads: steps written at a time. process_group: a CPU group of the processes
        that save together; None: all of torch.distributed if it is initialised. chkpt_on_preemption: watch for SIGTERM. A number that is
        None has its default.
        Raises ValueError for numbers out of range, another kind of group, paths that differ, and SIGTERM outside the main thread.
        """
        max_to_keep = 0 if max_to_keep is None else max_to_keep
        max_pending_async = 1 if max_pending_async is None else max_pending_async
        num_of_threads = 1 if num_of_threads is None else num_of_threads
        for name, value, least in (
            ("save_interval", save_interval, 1),
            ("max_to_keep", max_to_keep, 0),
            ("max_pending_async", max_pending_async, 1),
            ("num_of_threads", num_of_threads, 1),
        ):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is {value!r}, must be an integer of at least {least}")
        if "://" in os.fspath(path):
            raise ValueError(f"{path} is no folder: mount the storage and give the path of a folder in it")
        self._path = Path(path).absolute()
        self._interval, self._max_to_keep, self._max_pending = save_interval, max_to_keep, max_pending_async
        self._participants, *self._thread_participants = group_participants(process_group, 1 + num_of_threads)
        paths = self._participants.all_gather(str(self._path))
        if len(set(paths)) > 1:
            raise ValueError(f"processes that save together need one path, got {', '.join(paths)}")
        # Each thread has its own process group: the processes exchange data in the order in which that thread saves.
        self._threads = [ThreadPoolExecutor(1, "checkpoint") for _ in range(num_of_threads)]
        self._started = 0
        self._pending: _Pending = {}
        self._retaining = threading.Lock()
        self._step: int | None = None
        self._watches, self._reached, self._saved_after_signal = chkpt_on_preemption, False, False
        # Not a method, which would keep the manager alive; the dict is emptied, but never replaced.
        weakref.finalize(self, _log_failures, self._pending, self._path)
        if chkpt_on_preemption:
            preemption.watch()

    def should_save(self, step: int) -> bool:
        """Whether `save` and `save_async` would save: every `save_interval` steps, and once after SIGTERM. Raises as `save_async`."""
        self._synchronize(step)
        return step % self._interval == 0 or (self._reached and not self._saved_after_signal)

    def save(self, step: int, state_dict: dict[str, Any], force: bool = False) -> bool:
        """Save a nesting if `should_save(step)` or `force`; gives whether it did. Waits for saves in the background first.

        Raises FailedSaveError as `save_async`, and as `xla_serialization.save`; then the earlier steps are as they were.
        """
        if not self.should_save(step) and not force:
            return False
        # Errors stay in the futures for `_synchronize`: all processes raise them at the same call, whichever had them.
        wait(self._pending.values())
        with self._participants.raise_together():
            state = flatten(state_dict, self._participants.index)
            chunks = local_chunks(state, self._participants)
        self._write(step, state, chunks, self._participants)
        self._saved_after_signal = self._reached
        return True

    def save_async(self, step: int, state_dict: dict[str, Any], force: bool = False) -> bool:
        """As `save`, but return once the state is copied on its devices; a thread writes the copy. Waits while too many are pending.

        Raises FailedSaveError if an earlier save in the background failed, and UnsavableError for what a checkpoint cannot hold.
        """
        if not self.should_save(step) and not force:
            return False
        self._make_room(step)
        # All processes choose the same thread, since they meet in its process group.
        thread = self._started % len(self._threads)
        participants = self._thread_participants[thread]
        with self._participants.raise_together():
            state = snapshot(flatten(state_dict, participants.index))
            chunks = local_chunks(state, participants)
        self._pending[step] = self._threads[thread].submit(self._write, step, state, chunks, participants)
        self._started += 1
        self._saved_after_signal = self._reached
        return True

    def restore(self, step: int, state_dict: dict[str, Any]) -> None:
        """Load a step into `state_dict`: fill its tensors, on any device and with any sharding, and replace its plain values.

        Containers stay the same objects where both sides have a dict or a list. Waits for pending saves, and raises as `join`,
        MissingCheckpointError (FileNotFoundError) for a step that does not exist, and as `xla_serialization.load_into`.
        """
        self.join()
        if step not in (steps := self.all_steps()):
            available = f"there are {', '.join(map(str, steps))}" if steps else "there are none"
            raise MissingCheckpointError(errno.ENOENT, f"no checkpoint of step {step}; {available}", str(self._path))
        _update_in_place(state_dict, load_part(state_dict, folder_of(self._path, step), self._participants))

    def all_steps(self) -> list[int]:
        """List the steps whose checkpoints are complete, ascending."""
        return complete_steps(self._path)

    def join(self) -> None:
        """Wait for pending saves. Raises FailedSaveError if one failed."""
        wait(self._pending.values())
        self._raise_failures()

    def reached_preemption(self, step: int) -> bool:
        """Whether a process of the job had got SIGTERM by the first call with this step. Raises as `save_async`."""
        self._synchronize(step)
        return self._reached

    def _synchronize(self, step: int) -> None:
        """At the first call with a new step, tell all processes whether a save failed or SIGTERM came in one of them."""
        if not isinstance(step, int) or step < 0:
            raise ValueError(f"step is {step!r}, must be an integer of at least 0")
        new = step != self._step
        # One exchange for each step, however often each process calls with it.
        if not new and self._participants.count > 1:
            return
        failed, signalled = any_of(self._participants, [any(map(_failed, self._pending.values())), self._watches and preemption.received()])
        if new:
            self._step, self._reached = step, self._reached or signalled
        if failed:
            self.join()  # what failed in one process fails in all
        if new and self._saved_after_signal and preemption.would_end():
            self.join()
            raise SystemExit(128 + signal.SIGTERM)  # the exit code that a shell gives for death by this signal

    def _make_room(self, step: int) -> None:
        def running() -> list[Future[None]]:
            return [future for future in self._pending.values() if not future.done()]

        # A save of this step in another thread would write to the same folder.
        if step in self._pending:
            wait([self._pending[step]])
        while len(running()) >= self._max_pending:
            wait(running(), return_when=FIRST_COMPLETED)
        for finished in [pending_step for pending_step, future in self._pending.items() if future.done() and not _failed(future)]:
            del self._pending[finished]

    def _raise_failures(self) -> None:
        """Raise FailedSaveError for the saves that have failed, each once."""
        failures = {step: error for step, future in self._pending.items() if (error := future.exception()) is not None}
        self._pending.clear()
        if failures:
            self._saved_after_signal = False
            first = next(iter(failures.values()))
            raise FailedSaveError(
                f"saving step {', '.join(map(str, failures))} below {self._path} in the background failed: "
                f"{type(first).__name__}: {first}; steps that are whole: {self.all_steps()}"
            ) from first

    def _write(self, step: int, state: FlatState, chunks: Chunks, participants: Participants) -> None:
        write_chunks(state, chunks, folder_of(self._path, step), participants)
        with participants.raise_together(f"step {step} was saved, but older ones could not be removed"):
            if participants.index == 0:
                with self._retaining:
                    # A copy, since the training thread adds to the dict. This save's own future is not done yet.
                    busy = {other for other, future in self._pending.copy().items() if not future.done()} - {step}
                    retain(self._path, step, self._max_to_keep, busy)


def _failed(future: Future[None]) -> bool:
    return future.done() and future.exception() is not None


def _update_in_place(into: Any, loaded: Any) -> Any:
    """Put loaded values into a nesting: its tensors are filled already; dicts, lists and marks get new contents; all else is replaced."""
    if isinstance(into, torch.Tensor):
        return into
    if isinstance(into, PerProcess):
        into.value = _update_in_place(into.value, loaded)
        return into
    if isinstance(into, dict) and isinstance(loaded, dict):
        for key, value in loaded.items():
            into[key] = _update_in_place(into.get(key), value)
        return into
    if isinstance(into, list) and isinstance(loaded, list):
        into[:] = [_update_in_place(mine, theirs) for mine, theirs in zip(into, loaded, strict=True)]
        return into
    return loaded


def _log_failures(pending: _Pending, path: Path) -> None:
    """Log the saves that have failed, when the program ends or the manager is collected."""
    for step, future in pending.items():
        if _failed(future):
            _log.error("saving step %s below %s in the background failed", step, path, exc_info=future.exception())

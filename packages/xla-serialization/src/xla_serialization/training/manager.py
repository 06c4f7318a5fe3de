"""Save the steps of a run: now or beside the training, so many, and once more when the process is to be ended."""

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

        max_to_keep: checkpoints; those saved longest ago go when a new one is whole (0: none goes). max_pending_async: copies of the state
        that wait to be written, at most. num_of_threads: write so many steps at a time. process_group: a CPU group of those that save
        together; None: all of torch.distributed if it is initialised. chkpt_on_preemption: watch for SIGTERM. A number that is None has its
        default.
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
        # One group of processes for each thread: they exchange data in the order in which their threads save.
        self._threads = [ThreadPoolExecutor(1, "checkpoint") for _ in range(num_of_threads)]
        self._started = 0
        self._pending: _Pending = {}
        self._retaining = threading.Lock()
        self._step: int | None = None
        self._watches, self._reached, self._saved_after_signal = chkpt_on_preemption, False, False
        # No method, which would keep the manager alive; and this very dict, which is emptied but never replaced.
        weakref.finalize(self, _log_failures, self._pending, self._path)
        if chkpt_on_preemption:
            preemption.watch()

    def should_save(self, step: int) -> bool:
        """Whether `save` and `save_async` would: every `save_interval` steps, and once after SIGTERM. Raises as `save_async`."""
        self._synchronize(step)
        return step % self._interval == 0 or (self._reached and not self._saved_after_signal)

    def save(self, step: int, state_dict: dict[str, Any], force: bool = False) -> bool:
        """Save a nesting if `should_save(step)` or `force`; gives whether it did. Saves in the background are finished before.

        Raises FailedSaveError as `save_async`, and as `xla_serialization.save`; then the earlier steps are as they were.
        """
        if not self.should_save(step) and not force:
            return False
        # Errors stay there for `_synchronize`: all processes raise them at the same call, whichever has them.
        wait(self._pending.values())
        with self._participants.raise_together():
            state = flatten(state_dict, self._participants.index)
            chunks = local_chunks(state, self._participants)
        self._write(step, state, chunks, self._participants)
        self._saved_after_signal = self._reached
        return True

    def save_async(self, step: int, state_dict: dict[str, Any], force: bool = False) -> bool:
        """As `save`, but returns when the state has been copied on its devices; a thread writes. Waits while too many are pending.

        Raises FailedSaveError if an earlier save in the background failed, and UnsavableError for what a checkpoint cannot hold.
        """
        if not self.should_save(step) and not force:
            return False
        self._make_room(step)
        # The same thread in all processes, as its group of processes needs.
        number = self._started % len(self._threads)
        participants = self._thread_participants[number]
        with self._participants.raise_together():
            state = snapshot(flatten(state_dict, participants.index))
            chunks = local_chunks(state, participants)
        self._pending[step] = self._threads[number].submit(self._write, step, state, chunks, participants)
        self._started += 1
        self._saved_after_signal = self._reached
        return True

    def restore(self, step: int, state_dict: dict[str, Any]) -> None:
        """Fill the tensors of `state_dict` with those of a step, wherever they are and however they are sharded, and put its values in.

        Containers stay the same objects, where both sides have a dict or a list. Waits for pending saves, and raises as `join`,
        MissingCheckpointError (FileNotFoundError) for a step that is not there, and as `xla_serialization.load_into`.
        """
        self.join()
        if step not in (steps := self.all_steps()):
            there = f"there are {', '.join(map(str, steps))}" if steps else "there are none"
            raise MissingCheckpointError(errno.ENOENT, f"no checkpoint of step {step}; {there}", str(self._path))
        _update_in_place(state_dict, load_part(state_dict, folder_of(self._path, step), self._participants))

    def all_steps(self) -> list[int]:
        """The steps that are saved to the end, ascending."""
        return complete_steps(self._path)

    def join(self) -> None:
        """Wait for pending saves. Raises FailedSaveError if one failed."""
        wait(self._pending.values())
        self._raise_failures()

    def reached_preemption(self, step: int) -> bool:
        """Whether a process of the job had SIGTERM when this step was first asked about, or earlier. Raises as `save_async`."""
        self._synchronize(step)
        return self._reached

    def _synchronize(self, step: int) -> None:
        """At the first call with a new step, all processes learn whether one has failed or is to be ended."""
        if not isinstance(step, int) or step < 0:
            raise ValueError(f"step is {step!r}, must be an integer of at least 0")
        new = step != self._step
        # One exchange for each step, however often each process asks in it.
        if not new and self._participants.count > 1:
            return
        failed, signalled = any_of(self._participants, [any(map(_failed, self._pending.values())), self._watches and preemption.received()])
        if new:
            self._step, self._reached = step, self._reached or signalled
        if failed:
            self.join()  # what failed in one process fails in all
        if new and self._saved_after_signal and preemption.would_end():
            self.join()
            raise SystemExit(128 + signal.SIGTERM)  # as a shell calls the end by a signal

    def _make_room(self, step: int) -> None:
        def running() -> list[Future[None]]:
            return [future for future in self._pending.values() if not future.done()]

        # A save of this step in another thread would write to the same folder.
        if step in self._pending:
            wait([self._pending[step]])
        while len(running()) >= self._max_pending:
            wait(running(), return_when=FIRST_COMPLETED)
        for done in [number for number, future in self._pending.items() if future.done() and not _failed(future)]:
            del self._pending[done]

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
                    # A copy, since the thread that steps adds to it. This save's own future is not done yet.
                    busy = {other for other, future in self._pending.copy().items() if not future.done()} - {step}
                    retain(self._path, step, self._max_to_keep, busy)


def _failed(future: Future[None]) -> bool:
    return future.done() and future.exception() is not None


def _update_in_place(into: Any, found: Any) -> Any:
    """Put `found` into a nesting: tensors that were filled; dicts, lists and marks with new contents; else `found` itself."""
    if isinstance(into, torch.Tensor):
        return into
    if isinstance(into, PerProcess):
        into.value = _update_in_place(into.value, found)
        return into
    if isinstance(into, dict) and isinstance(found, dict):
        for key, value in found.items():
            into[key] = _update_in_place(into.get(key), value)
        return into
    if isinstance(into, list) and isinstance(found, list):
        into[:] = [_update_in_place(mine, theirs) for mine, theirs in zip(into, found, strict=True)]
        return into
    return found


def _log_failures(pending: _Pending, path: Path) -> None:
    """Log the saves that have failed: at the end of the program, or of the manager."""
    for step, future in pending.items():
        if _failed(future):
            _log.error("saving step %s below %s in the background failed", step, path, exc_info=future.exception())

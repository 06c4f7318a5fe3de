"""`torch_xla.compile_only`: compile what a block records, and run none of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from xla_core.api import job, plugins, targets
from xla_core.api.step_closures import device_context
from xla_core.base.budgets import budget
from xla_core.base.installation import DISTRIBUTED
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.placement.target import Target
from xla_core.engine.runtime import client, executor, sync
from xla_core.engine.runtime.source_location import in_region
from xla_core.engine.tensor.rollback import Rollback, lose_planned

if TYPE_CHECKING:
    from xla_core.engine.compile.ranks import Ranks
    from xla_core.engine.runtime.compile_threads import CompileThreads


class CompileOnly:
    """What a block of `torch_xla.compile_only` has compiled."""

    def __init__(self, threads: CompileThreads) -> None:
        self._threads = threads

    @property
    def programs(self) -> int:
        """How many programs were compiled, or loaded from disk, so far; all of them once the block has ended."""
        return self._threads.compiled


def compiles_only() -> bool:
    """Whether this process is within a block of `compile_only`."""
    return executor.is_replaced()


@budget(compiles=None)
@contextmanager
def compile_only(target: str | None = None) -> Iterator[CompileOnly]:
    """Within the block, what is recorded is compiled, in threads, and nothing runs: a warm-up takes as long as the compiler does.

    What is compiled is found later in memory, and by other processes on disk (`XLA_PERSISTENT_CACHE_PATH`). Devices take no data: values
    read are NaN, and small integers as if all else were 0. At the end the data of tensors, gradients, the state of optimizers and random
    states are as they were before the block. What it changes in Python's own objects stays changed, and tensors that it makes have no
    data. On a terminal a bar shows how far it is, where rich is installed.

    target: compile for devices that this machine has not, as `torch_xla.target`; None: for those of this process. The block holds for the
    whole process: no other thread may run programs meanwhile.

    In a job of several processes all enter the block, and compile together: with `XLA_PERSISTENT_CACHE_PATH` at a folder that all see, the
    first process that needs a program compiles it, and the others load it.

    Raises at its end what compiling has raised, such as LoweringError, with a note of how many others failed. RuntimeError inside of a
    function or block of `torch_xla.compile`, inside of another such block, and for replicas that are threads of one process;
    ExecutionError, in all processes of a job, if their settings differ, or programs with collectives; UnknownDeviceError as
    `torch_xla.target`.
    """
    # Loaded when it is asked for: `import torch_xla` compiles nothing.
    from xla_core.engine.runtime.ahead import Ahead
    from xla_core.engine.runtime.compile_threads import CompileThreads

    if in_region():
        raise RuntimeError("torch_xla.compile_only() inside of torch_xla.compile: begin it outside, and call the function within")
    if compiles_only():
        raise RuntimeError("torch_xla.compile_only() inside of another one: the outer one compiles all that is recorded")
    with ExitStack() as stack:
        if target is not None:
            stack.enter_context(targets.target(target))
        recorders = client.client().recorders
        seeds = [recorder.seed for recorder in recorders]
        for recorder in recorders:
            sync.step(recorder)
        devices = client.client().target
        stack.callback(_put_back(recorders, seeds, devices.attached))
        planned = replace(devices, name=f"compile_only ({devices.name})", attached=False)
        ranks = _ranks(devices)
        placements = stack.enter_context(client.without_data(planned))
        threads = CompileThreads(stack.enter_context(_progress()))
        ahead = Ahead(placements, threads, ranks)
        stack.callback(executor.launch_by, executor.launch_by(ahead.launch))
        try:
            yield CompileOnly(threads)
            for recorder in recorders:
                sync.step(recorder)
            ahead.finish()
        except BaseException:
            threads.give_up()
            raise


def _ranks(devices: Target) -> Ranks | None:
    """This process among those of its job; None if it is alone, or plans for other devices. Raises RuntimeError for threads."""
    from xla_core.engine.compile.ranks import Ranks

    if not devices.attached:
        return None
    if job.process_count() == 1:
        if job.world_size() > 1:
            raise RuntimeError("torch_xla.compile_only() among replicas that are threads of one process: start a process for each device")
        return None
    several = plugins.collectives()
    if several is None:
        raise plugins.missing("torch_xla.compile_only, in a job of several processes,", DISTRIBUTED)
    return Ranks(job.process_index(), devices, several.exchange)


def _put_back(recorders: Sequence[Recorder], seeds: Sequence[int], attached: bool) -> Callable[[], None]:
    """A function that puts back data and optimizers as they are now, and random states; it forgets what was captured meanwhile."""
    rollback = Rollback()
    contexts = [context for recorder in recorders if (context := device_context(recorder.device)).all_reduce_token is None]

    def put_back() -> None:
        for recorder, seed in zip(recorders, seeds, strict=True):
            with recorder.lock:
                sync.retire(recorder)
                recorder.seed = seed
        rollback.undo()
        if attached:
            lose_planned()
        for context in contexts:
            context.all_reduce_token = None  # the first collective makes one
        captured = sys.modules.get("xla_core.features.captured.function")
        if captured is not None:
            captured.forget_all()

    return put_back


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """What moves a bar on the terminal, given how many programs are compiled and how many there are; None elsewhere, and without rich."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
    except ImportError:
        yield None
        return
    columns = ("compiling", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("compiling", total=None)
        yield lambda compiled, known: shown.update(task, completed=compiled, total=known)

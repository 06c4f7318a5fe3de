"""Hear of what takes time on the devices, as it happens, with the line of the user's code that asked for it.

    >>> import torch
    >>> import torch_xla
    >>> from xla_core.abi.events import CompileEvent, subscribe
    >>> compiled = []
    >>> end = subscribe(compiled.append, CompileEvent)
    >>> for _ in range(3):
    ...     total = (torch.ones(5, device="xla") * 3).sum().item()
    >>> end()
    >>> len(compiled), compiled[0].num_nodes > 0, compiled[0].cause
    (1, True, <Cause.VALUE_READ: 'value_read'>)

`subscribe(function, *types)` calls the function for each event of these types, and gives a function that ends it:

* `CompileEvent`: a program was compiled. It has the `graph` and says why programs differ: its operations, its constants.
* `ExecuteEvent`: a program has run. The duration is the device's.
* `TransferEvent`: bytes went between host and device, in a `Direction`.
* `SyncEvent`: pending work was handed over, all of it or for a read (`SyncKind`).
* `FallbackEvent`: an operation without a lowering ran on the CPU.

A sixth type, `ReplicaWaitEvent`, is in `collectives`, with what tells of it.

`Cause` says what made a program compile or run, such as a step or a read. Lines are the innermost of the user's code: what is below the
folders of torch, jax and the core is none of it, and a package adds its own by `exclude_frames`. `user_frames` has all frames of the
user's in the thread that asks. `explain_failures` adds what others know, a launcher say, to the text of an execution that failed.

Guarantees: events cost nothing while nobody hears them. They come in the thread where they happen, those of executions perhaps in a
thread that waits for the device, with the context variables (`contextvars`) of the thread that launched them. A listener that raises is
named in a warning and hears no more; only an XlaError goes on to the operation that caused the event, so that a listener can stop a run on
purpose. Events are frozen.
"""

from __future__ import annotations

from xla_core.base.metrics import Cause, CompileEvent, Direction, ExecuteEvent, FallbackEvent, SyncEvent, SyncKind, TransferEvent, subscribe
from xla_core.engine.runtime.failures import explain_failures
from xla_core.engine.runtime.source_location import exclude_frames, user_frames

__all__ = [
    "Cause",
    "CompileEvent",
    "Direction",
    "ExecuteEvent",
    "FallbackEvent",
    "SyncEvent",
    "SyncKind",
    "TransferEvent",
    "exclude_frames",
    "explain_failures",
    "subscribe",
    "user_frames",
]

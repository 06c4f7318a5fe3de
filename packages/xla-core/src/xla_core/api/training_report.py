"""Print and log the progress of example programs."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from xla_core.api.devices import xla_real_device
from xla_core.api.job import global_ordinal
from xla_core.api.model import is_master_ordinal
from xla_core.api.user_modules import xm, xr
from xla_core.base.metrics import snapshot


def now(format: str = "%H:%M:%S") -> str:
    """The local time."""
    return time.strftime(format)


def mp_test(fn: Callable[..., object]) -> Callable[..., None]:
    """Decorator for a function that runs as a replica: after an exception the process exits with status 21, so that no peer waits."""

    def run(*args: Any, **kwargs: Any) -> None:
        try:
            fn(*args, **kwargs)
        except Exception as error:
            importlib.import_module("traceback").print_exception(error)
            sys.exit(21)

    return run


def get_summary_writer(logdir: str | None) -> Any:
    """A TensorBoard writer on the master ordinal; None on others, or without a folder."""
    if not logdir:
        return None
    if not xm(is_master_ordinal)():
        return None
    return importlib.import_module("torch.utils.tensorboard").SummaryWriter(log_dir=logdir)


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: Mapping[str, float] | None = None,
    write_xla_metrics: bool = False,
) -> None:
    """Write scalars, and the counters and metric totals of the runtime, to a writer; does nothing for None."""
    if summary_writer is None:
        return
    for name, value in (dict_to_write or {}).items():
        summary_writer.add_scalar(name, value, global_step)
    if write_xla_metrics:
        for name, value in _runtime_numbers().items():
            summary_writer.add_scalar(name, value, global_step)


def _runtime_numbers() -> dict[str, float]:
    current = snapshot()
    counters = {f"counter/{name}": float(value) for name, value in current.counters.items()}
    return counters | {f"metric/{name}": float(metric.accumulator) for name, metric in current.metrics.items()}


def close_summary_writer(summary_writer: Any) -> None:
    """Flush and close a writer; does nothing for None."""
    if summary_writer is not None:
        summary_writer.flush()
        summary_writer.close()


def print_training_update(
    device: Any, step: int, loss: Any, rate: float, global_rate: float, epoch: int | None = None, summary_writer: Any = None
) -> None:
    """Print a line about a training step, and write its rates to a writer."""
    parts = [
        f"device={xla_real_device(device)}/{xr(global_ordinal)()}",
        f"epoch={epoch}" if epoch is not None else "",
        f"step={step}",
        f"loss={float(loss):.5f}",
        f"rate={rate:.2f}",
        f"global_rate={global_rate:.2f}",
        f"time={now()}",
    ]
    print("training", *filter(None, parts), flush=True)
    write_to_summary(summary_writer, step, {"rate": rate, "global_rate": global_rate})


def print_test_update(device: Any, accuracy: float | None, epoch: int | None = None, step: int | None = None) -> None:
    """Print a line about a test step."""
    parts = [
        f"device={xla_real_device(device)}/{xr(global_ordinal)()}",
        f"epoch={epoch}" if epoch is not None else "",
        f"step={step}" if step is not None else "",
        f"accuracy={accuracy:.2f}" if accuracy is not None else "",
        f"time={now()}",
    ]
    print("test", *filter(None, parts), flush=True)

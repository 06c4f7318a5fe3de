"""Tests that start a process for each rank, of DTensor and the like: what they need to find device xla as they would find others.

Ranks are forked of one process that has imported what they need (`rank.py`) and used no device: the imports take longer than most tests.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import threading
import time
import unittest
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

FOLDER = "distributed/"
"""Of PyTorch's tests. Those of these files are not made for each device: they ask for one by themselves."""
COLLECTIVES = FOLDER + "test_distributed_spawn.py"
"""The file of torch's tests of c10d, which make most tensors on no device of their choice."""
DEVICE = "CONFORMANCE_DEVICE"
FILE = "CONFORMANCE_FILE"
"""The variables that tell ranks their device and file."""


def tests_of(module: Any) -> dict[str, tuple[Any, str]]:
    """Class and method of each test that a file defines, by its name."""
    classes = [cls for cls in vars(module).values() if isinstance(cls, type) and issubclass(cls, unittest.TestCase)]
    own = [cls for cls in classes if cls.__module__ == module.__name__]
    return {f"{cls.__name__}.{method}": (cls, method) for cls in own for method in unittest.TestLoader().getTestCaseNames(cls)}


def find_xla() -> None:
    """Let torch's base classes use device xla: there each rank has one device, where they expect one that has all of them."""
    dtensor: Any = importlib.import_module("torch.testing._internal.distributed._tensor.common_dtensor")
    dtensor.DEVICE_COUNT = 64  # more ranks than any test has
    dtensor.DTensorTestBase.backend = property(lambda _: "gloo")  # of the names that they know, one that is here
    _let_gloo_mean_xla()


def _let_gloo_mean_xla() -> None:
    """Let process groups of backend gloo, which is what tests of collectives ask for, run those of tensors on xla by backend `xla`.

    Only the choice of the backend by device changes: asked for its name, a group still says gloo.
    """
    config: Any = importlib.import_module("torch.distributed.distributed_c10d").BackendConfig
    init = config.__init__

    def init_with_xla(self: Any, backend: str) -> None:
        init(self, backend)
        if backend == "gloo":
            self.device_backend_map = {"cpu": backend, "xla": type(backend)("xla")}

    config.__init__ = init_with_xla


@dataclass(frozen=True, slots=True)
class _InEnvironment:
    """What a rank does, with the variables that the test's process has when it starts it."""

    work: Callable[..., Any]
    variables: dict[str, str]

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        os.environ.clear()
        os.environ.update(self.variables)
        self.work(*args, **kwargs)


def _process(context: Any, target: Callable[..., Any], **others: Any) -> Any:
    return context.Process(target=_InEnvironment(target, dict(os.environ)), **others)


def fork_ranks() -> None:
    """Let torch's tests fork the processes of their ranks, where they would start each anew."""
    base: Any = importlib.import_module("torch.testing._internal.common_distributed").MultiProcessTestCase
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rank"])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    base._spawn_processes = lambda test: test._start_processes(partial(_process, context))


def prepare_collectives(folder: str) -> None:
    """Set what torch's tests of c10d read from the environment. folder: an empty one."""
    os.environ.update(BACKEND="gloo", WORLD_SIZE="3", TEMP_DIR=folder)
    Path(folder, "barrier").touch()


def make_collectives_on_xla() -> None:
    """In a rank of torch's tests of c10d, if this is one: make its tensors on xla, and look for no profiler events of gloo's own names."""
    if "BACKEND" not in os.environ:
        return
    importlib.import_module("torch").set_default_device("xla")
    tests: Any = importlib.import_module("torch.testing._internal.distributed.distributed_test")
    for backends in (tests.PROFILING_SUPPORTED_BACKENDS, tests.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        backends.clear()


def end_with_the_worker() -> None:
    """End this rank once the process that it is forked of is gone, which ends with the worker, as after its limit of time."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

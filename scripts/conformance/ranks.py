"""Tests that start a process for each rank, of DTensor and the like: what they need to find device xla as they would find others.

Each rank imports the worker (as `__mp_main__`, by multiprocessing's way to start a process) and the test file anew.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
import unittest
from typing import Any

FOLDER = "distributed/"
"""Of PyTorch's tests. Those of these files are not made for each device: they ask for one by themselves."""
DEVICE = "CONFORMANCE_DEVICE"
"""The variable that tells ranks their device."""


def tests_of(module: Any) -> dict[str, tuple[Any, str]]:
    """Class and method of each test that a file defines, by its name."""
    classes = [cls for cls in vars(module).values() if isinstance(cls, type) and issubclass(cls, unittest.TestCase)]
    own = [cls for cls in classes if cls.__module__ == module.__name__]
    return {f"{cls.__name__}.{method}": (cls, method) for cls in own for method in unittest.TestLoader().getTestCaseNames(cls)}


def find_xla() -> None:
    """Let torch's base classes use device xla: there each rank has one device, where they expect one that has all of them."""
    dtensor: Any = importlib.import_module("torch.testing._internal.distributed._tensor.common_dtensor")
    dtensor.DEVICE_COUNT = dtensor.NUM_DEVICES
    # A name of two backends is one that their list of backends has for other devices, too.
    dtensor.DTensorTestBase.backend = property(lambda _: "cpu:gloo,xla:xla")


def end_with_the_worker() -> None:
    """End this rank once the worker that started it is gone, as after its limit of time."""
    worker = os.getppid()

    def watch() -> None:
        while os.getppid() == worker:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

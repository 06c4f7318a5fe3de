"""A process that runs tests of one of PyTorch's test files, one line of JSON each: `worker.py TESTS FILE DEVICE`.

It says first which tests there are for the device. Then it takes names from stdin, and answers each with what became of the test.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import json
import os
import sys
import tempfile
import time
import traceback
import unittest
import warnings
from pathlib import Path
from typing import Any

import helpers
import ranks

LONGEST = 6_000
"""Characters of an error that are kept."""


class Noted(unittest.TestResult):
    """Keeps what became of the last test."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: dict[str, Any] = {}

    def _fail(self, error: Any) -> None:
        if self.answer.get("outcome") != "failed":  # the first part of a test that fails says why
            kind, value, trace = error
            lines = traceback.extract_tb(trace)
            where = next((f"{Path(line.filename).name}:{line.lineno}" for line in reversed(lines) if "/unittest/" not in line.filename), "")
            self.answer = {"outcome": "failed", "type": kind.__name__, "text": str(value)[:LONGEST], "where": where}

    def addError(self, test: Any, err: Any) -> None:
        self._fail(err)

    def addFailure(self, test: Any, err: Any) -> None:
        self._fail(err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._fail(err)
        elif self.answer.get("outcome") != "failed":
            self.answer = {"outcome": "passed"}

    def addSuccess(self, test: Any) -> None:
        self.answer.setdefault("outcome", "passed")

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.answer = {"outcome": "passed", "text": "fails, as torch expects"}

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.answer = {"outcome": "failed", "type": "UnexpectedSuccess", "text": "torch expects a failure", "where": ""}

    def addSkip(self, test: Any, reason: str) -> None:
        if hasattr(test, "test_case") and self.answer:  # a part of a test, of which others count
            return
        self.answer = {"outcome": "skipped", "text": reason[:LONGEST]}


def load(folder: Path, file: str) -> tuple[Any, list[str]]:
    """The module of a test file, and what was supplied to it or changed in its text."""
    path = folder / file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    source, changed = helpers.adapted(path.read_text(encoding="utf-8"))
    supplied = helpers.supply(source)
    exec(compile(source, path, "exec"), vars(module))  # noqa: S102
    return module, supplied + changed


def tests_of(module: Any, device: str) -> dict[str, tuple[Any, str]]:
    """Class and method of each test that the module has for a device, by its name without the device."""
    from torch.testing._internal.common_device_type import DeviceTypeTestBase

    tests = {}
    for cls in vars(module).values():
        if isinstance(cls, type) and issubclass(cls, DeviceTypeTestBase) and issubclass(cls, unittest.TestCase):
            for method in unittest.TestLoader().getTestCaseNames(cls):
                before, found, behind = method.rpartition(f"_{device}")
                if found:  # what is not made for a device has no device's name
                    name = cls.__name__.removesuffix(cls.device_type.upper())
                    tests[f"{name}.{before}{behind}"] = (cls, method)
    return tests


def run(cls: Any, method: str) -> dict[str, Any]:
    """What becomes of a test, and the seconds it takes."""
    noted = Noted()
    begin = time.perf_counter()
    unittest.TestSuite([cls(method)]).run(noted)
    return {"outcome": "failed", "type": "", "text": "said nothing", "where": "", **noted.answer,
            "seconds": time.perf_counter() - begin}  # fmt: skip


def prepare(device: str) -> None:
    """Make torch's tests find the device."""
    warnings.simplefilter("ignore")
    import torch

    if device == "xla":
        importlib.import_module("torch_xla")  # before torch's tests look which devices there are
        importlib.import_module("torch.testing._internal.common_device_type").PrivateUse1TestBase.setUpClass()
    helpers.hide_marks_of_another_project()
    helpers.ask_of_every_accelerator()
    torch.set_num_threads(1)


def main(folder: Path, file: str, device: str) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # what tests print is no answer
    prepare(device)
    of_ranks = file.startswith(ranks.FOLDER)
    if of_ranks:
        os.environ |= {ranks.DEVICE: device, ranks.FILE: str(folder / file)}
    if file == ranks.COLLECTIVES:
        ranks.prepare_collectives(tempfile.mkdtemp())
    try:
        sys.path[:0] = [str((folder / file).parent), str(folder)]
        os.chdir(folder)
        absent = helpers.drop_marks_of_absent_operators((folder / file).parent)
        if of_ranks:
            ranks.fork_ranks()
        if of_ranks and device == "xla":
            ranks.find_xla()
        module, adapted = load(folder, file)
        tests = ranks.tests_of(module) if of_ranks else tests_of(module, device)
        first: dict[str, Any] = {"tests": list(tests), "supplied": sorted(set(absent)) + adapted}
    except BaseException as error:
        first = {"error": f"{type(error).__name__}: {error}"[:LONGEST]}
    print(json.dumps(first), file=answers, flush=True)
    for line in sys.stdin:
        with contextlib.redirect_stdout(None):
            answer = run(*tests[line.rstrip("\n")])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    faulthandler.enable()
    main(Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3])
elif __name__ == "__mp_main__":  # a process that a test starts by itself
    importlib.import_module("rank")

"""Programs that call a step many times give the same captured as recorded, at default settings and without any verification.

Every sixth program runs in the usual tests, in one of the two settings; the long tests run all in both.
"""

from __future__ import annotations

import importlib.util
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captured_programs import PROGRAMS, Program, alike, observed

import torch_xla
from xla_core.base.errors import CaptureError

for path in sorted((Path(__file__).parent / "programs").glob("*.py")):
    spec = importlib.util.spec_from_file_location(f"programs_of_captured_steps_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def observations(program: Program, capture: Callable[..., Any]) -> tuple[list[Any], CaptureError | None]:
    """What a program yields until it ends or cannot be captured."""
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    seen: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is recorded at each call, and of torch
        try:
            for observation in program.run(capture):
                seen.append(observed(observation))
        except CaptureError as error:
            return seen, error
    return seen, None


def cases() -> Iterator[Any]:
    for index, program in enumerate(sorted(PROGRAMS, key=lambda each: each.name)):
        for number, verify_every in enumerate(("auto", None)):
            if verify_every is None and program.unnoticed:
                continue
            usual = index % 6 == 0 and index // 6 % 2 == number
            yield pytest.param(program, verify_every, id=f"{program.name}-{verify_every}", marks=[] if usual else [pytest.mark.long])


@pytest.mark.parametrize("program, verify_every", list(cases()))
def test_captured_is_recorded(program: Program, verify_every: Any) -> None:
    expected, none = observations(program, torch_xla.compile)
    assert none is None
    found, error = observations(program, partial(torch_xla.compile, capture=True, verify_every=verify_every))
    for index, (captured, recorded) in enumerate(zip(found, expected, strict=False)):
        assert alike(captured, recorded), f"observation {index} is {captured}, recorded {recorded}"
    if error is None:
        assert len(found) == len(expected)
    else:
        assert program.refused is not None, error
        assert re.search(program.refused, str(error))

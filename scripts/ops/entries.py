"""The databases of operators, modules and optimizers that torch ships, as tasks: (suite, number, name)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import torch

MAIN = (torch.float32, torch.int64, torch.bool)
OTHERS = (torch.bfloat16, torch.float16, torch.float64, torch.complex64)
GRADIENTS = (torch.float32, torch.float64, torch.complex64)


class Suite(Enum):
    """What is checked."""

    OPS = "ops"
    ERRORS = "errors"
    MODULES = "modules"
    OPTIMIZERS = "optimizers"


@dataclass(frozen=True, slots=True)
class Task:
    """One entry of a database; what a worker is given."""

    suite: Suite
    number: int
    name: str


@cache
def database(suite: Suite) -> list[Any]:
    """The entries of a suite. The import is torch's test suite: it takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if suite is Suite.MODULES:
            from torch.testing._internal.common_modules import module_db

            return list(module_db)
        if suite is Suite.OPTIMIZERS:
            from torch.testing._internal.common_optimizers import optim_db

            return list(optim_db)
        from torch.testing._internal.common_methods_invocations import op_db

        return list(op_db)


def name_of(entry: Any) -> str:
    """The name under which an entry is reported, its variant behind a dot."""
    if hasattr(entry, "optim_cls"):
        return str(entry.optim_cls.__name__)
    if hasattr(entry, "module_cls"):
        return str(entry.name)
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else str(entry.name)


def dtypes_of(entry: Any) -> list[torch.dtype]:
    """The dtypes that are checked and that CPU torch supports, the main ones first."""
    supported = entry.supported_dtypes("cpu")
    return [dtype for dtype in (*MAIN, *OTHERS) if dtype in supported]


def testable(suite: Suite, entry: Any) -> bool:
    """Whether a machine without accelerator can check the entry."""
    return suite in (Suite.MODULES, Suite.OPTIMIZERS) or bool(dtypes_of(entry))


def tasks(suites: list[Suite], names: str | None) -> list[Task]:
    """Everything to do, in the order of the databases; `names` keeps entries whose name contains one of its comma-separated parts."""
    parts = names.split(",") if names else [""]

    def chosen(name: str) -> bool:
        return any(name == part[1:] if part.startswith("=") else part in name for part in parts)

    return [
        Task(suite, number, name_of(entry))
        for suite in suites
        for number, entry in enumerate(database(suite))
        if testable(suite, entry) and chosen(name_of(entry))
    ]

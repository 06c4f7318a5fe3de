"""Run a script within `torch_xla.compile_only()`, in a process of its own: `python -m xla_debug.warm_script OPTIONS SCRIPT ARGS…`.

OPTIONS is JSON: `target`, a name or null; `steps`, after how many the script ends, or null; `module`, whether SCRIPT is the name of a
module; `function`, a name or null, and `calls`, for each call the shapes and dtypes of its arguments.
"""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import torch_xla
from xla_debug import core

# A function of torch_xla.compile(capture=True) is recorded twice before it is captured; optimizers make their state in the first call.
_CALLS = 3


class EnoughSteps(BaseException):
    """Ends the script after its last step: it runs its `finally` blocks, and catches it by no `except Exception`."""


def parsed_shapes(text: str) -> list[tuple[list[int], str]]:
    """The shape and dtype of each argument: `8x128:int64,8` are int64[8, 128] and float32[8]. Raises ValueError."""
    arguments = []
    for part in text.split(","):
        shape, _, dtype = part.partition(":")
        if not re.fullmatch(r"(\d+(x\d+)*)?", shape) or not isinstance(getattr(torch, dtype or "float32", None), torch.dtype):
            raise ValueError(f"{part!r} is no shape: write sizes with an x between them and a dtype of torch, as in 8x128:int64")
        arguments.append(([int(size) for size in shape.split("x") if size], dtype or "float32"))
    return arguments


def _end_after(steps: int) -> None:
    """Raise EnoughSteps in the user's sync after so many steps."""
    seen = 0

    def count(event: core.events.SyncEvent) -> None:
        nonlocal seen
        if event.kind is core.events.SyncKind.STEP and event.cause is not None:
            seen += 1
            if seen >= steps:
                unsubscribe()
                raise EnoughSteps

    unsubscribe = core.events.subscribe(count, core.events.SyncEvent)


def _imported(script: str, module: bool) -> ModuleType:
    """The module of a script, which does not see itself as the main program."""
    if module:
        return importlib.import_module(script)
    spec = importlib.util.spec_from_file_location(Path(script).stem, script)
    if spec is None or spec.loader is None:
        sys.exit(f"xla-debug: {script} is no Python file")
    imported = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = imported
    spec.loader.exec_module(imported)
    return imported


def _call(function: Callable[..., Any], calls: list[list[tuple[list[int], str]]]) -> None:
    """Call a function with zeros of each of the shapes, a step each time."""
    for shapes in calls:
        for _ in range(_CALLS):
            result = function(*[torch.zeros(shape, dtype=getattr(torch, dtype)).to("xla") for shape, dtype in shapes])
            torch_xla.sync()
            del result


def main(arguments: list[str]) -> None:
    """Compile what the script records, and say how much; its exit code is this process's, 1 if it or the compiler ends with an error."""
    options, script, *rest = arguments
    chosen = json.loads(options)
    sys.argv = [script, *rest]
    if not chosen["module"]:
        sys.path.insert(0, str(Path(script).resolve().parent))
    start = time.monotonic()
    exit_code: Any = 0
    function = None
    if chosen["function"]:
        function = getattr(_imported(script, chosen["module"]), chosen["function"], None)
        if not callable(function):
            sys.exit(f"xla-debug: {script} has no function {chosen['function']!r}")
    with torch_xla.compile_only(chosen["target"]) as warm:
        if chosen["steps"]:
            _end_after(chosen["steps"])
        try:
            if function is not None:
                _call(function, chosen["calls"])
            elif chosen["module"]:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(script, run_name="__main__")
        except EnoughSteps:
            pass  # what it has recorded is compiled
        except SystemExit as ended:
            exit_code = ended.code
    loaded = core.metrics.snapshot().counters.get("PersistentCacheHit", 0)
    seconds = time.monotonic() - start
    sys.stderr.write(f"xla-debug: {warm.programs} programs, {loaded} of them from the folder, in {seconds:.1f} s\n")
    sys.exit(exit_code)


if __name__ == "__main__":
    main(sys.argv[1:])

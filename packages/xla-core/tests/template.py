"""A process that has imported what takes long, torch and jax, and forks for each program that it is told of: a line of stdin, as JSON.

code: the program; variables: its whole environment; streams: the files for its stdout and stderr. Its exit code is a line of stdout.
"""

from __future__ import annotations

import json
import os
import sys
import types
from typing import Any

import jax  # noqa: F401
import torch._dynamo
import torch.distributed.tensor  # noqa: F401  # with the first operation on a tensor of any subclass


def told() -> dict[str, Any]:
    """Returns in the processes that are to run a program, with that program."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            program: dict[str, Any] = json.loads(line)
            return program
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()


program = told()
os.environ.clear()
os.environ.update(program["variables"])
for number, name in enumerate((os.devnull, *program["streams"])):
    file = os.open(name, os.O_RDWR | os.O_CREAT)
    os.dup2(file, number)
    os.close(file)
sys.argv = ["-c"]
main = sys.modules["__main__"] = types.ModuleType("__main__")
exec(compile(program["code"], "<string>", "exec"), vars(main))  # noqa: S102

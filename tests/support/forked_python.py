"""`Popen` and `run` of Python programs in a fifth of the time: forked from a process that has imported torch and jax already.

A test takes them from here where a new interpreter is not what it tests. The program finds nothing else that is not as in one: its own
environment, arguments, streams, folder, `__main__`, signals and exit status.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import json
import multiprocessing.process
import os
import random
import re
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

_READ_BY_IMPORTS = re.compile(r"(JAX|OMP|MKL|OPENBLAS|LD|TORCH|PYTORCH|LC|MALLOC)_.*|LANG|PYTHON.*")
"""Variables of the environment that count before a program begins."""
_MOST_TEMPLATES = 4
_PID, _STATUS = struct.Struct("q"), struct.Struct("i")


@lru_cache(maxsize=_MOST_TEMPLATES)
def _template(variables: tuple[tuple[str, str], ...]) -> socket.socket:
    """The connection to a process from which those with such variables are forked. It ends with this one."""
    ours, theirs = socket.socketpair()
    with theirs:
        os.set_inheritable(theirs.fileno(), True)
        environment = {name: text for name, text in os.environ.items() if not _READ_BY_IMPORTS.fullmatch(name)} | dict(variables)
        command = [sys.executable, __file__, str(theirs.fileno())]
        template = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd="/")

    def end() -> None:
        ours.close()
        template.wait()

    atexit.register(end)
    return ours


def can_be_forked(arguments: Sequence[str]) -> bool:
    """Whether a command is what `Popen` takes."""
    return arguments[0] == sys.executable and len(arguments) > 1 and (arguments[1] in ("-c", "-m") or not arguments[1].startswith("-"))


class Popen(subprocess.Popen[Any]):
    """subprocess.Popen, for `[sys.executable, …]` with a path, `-m` or `-c` and no other option of the interpreter."""

    def _execute_child(self, *args: Any) -> None:
        wanted = inspect.signature(super()._execute_child).bind(*args).arguments  # type: ignore[misc]
        arguments = list(map(os.fspath, wanted["args"]))
        if not can_be_forked(arguments) or wanted["preexec_fn"] is not None or wanted["pass_fds"]:
            raise ValueError(f"{arguments}: only a plain call of Python can be forked; take subprocess.Popen")
        environment = dict(os.environ if wanted["env"] is None else wanted["env"])
        request = {
            "arguments": arguments[1:],
            "folder": os.fspath(wanted["cwd"] or os.getcwd()),
            "environment": environment,
            "new_session": wanted["start_new_session"],
        }
        streams = [wanted[name] if wanted[name] != -1 else number for number, name in enumerate(("p2cread", "c2pwrite", "errwrite"))]
        self._end, theirs = os.pipe()
        try:
            text = json.dumps(request).encode()
            connection = _template(tuple(sorted((name, each) for name, each in environment.items() if _READ_BY_IMPORTS.fullmatch(name))))
            socket.send_fds(connection, [_PID.pack(len(text))], [*streams, theirs])
            connection.sendall(text)
        finally:
            os.close(theirs)
        self.pid = _PID.unpack(os.read(self._end, _PID.size))[0]
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*[wanted[name] for name in ends])  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """The process's number and its status if it has ended, else 0."""
        if wait_flags & os.WNOHANG and not select.select([self._end], [], [], 0)[0]:
            return 0, 0
        said = os.read(self._end, _STATUS.size)
        os.close(self._end)
        return self.pid, _STATUS.unpack(said)[0]

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def run(command: list[str], *, timeout: float | None = None, check: bool = False, **options: Any) -> subprocess.CompletedProcess[Any]:
    """As subprocess.run, without its `input`."""
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _serve(connection: socket.socket) -> dict[str, Any]:
    """In the template: fork a process for each request, and tell of its end. Returns in those processes, with the request."""
    ends: dict[int, int] = {}
    woken, wake = socket.socketpair()
    for each in (woken, wake):
        each.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    while True:
        ready = select.select([connection, woken], [], [])[0]
        if woken in ready:
            woken.recv(4096)
            while ends and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                os.write(ends[ended[0]], _STATUS.pack(ended[1]))
                os.close(ends.pop(ended[0]))
        if connection not in ready:
            continue
        size, descriptors, _, _ = socket.recv_fds(connection, _PID.size, 4)
        if not size:
            sys.exit()
        request: dict[str, Any] = json.loads(connection.recv(_PID.unpack(size)[0], socket.MSG_WAITALL))
        *streams, end = descriptors
        child = os.fork()
        if not child:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if request["new_session"]:
                os.setsid()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            os.closerange(3, max(_descriptors()) + 1)
            for each in (connection, woken, wake):
                each.detach()
            return request
        ends[child] = end
        os.write(end, _PID.pack(child))
        for stream in streams:
            os.close(stream)


def _descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def _program(request: dict[str, Any]) -> Callable[[], Any]:
    """Make this process that of a program; what runs it."""
    import numpy as np

    first, *others = request["arguments"]
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    multiprocessing.process.ORIGINAL_DIR = request["folder"]  # type: ignore[attr-defined]
    tempfile.tempdir = None
    random.seed()
    np.random.seed()
    sys.excepthook = _show
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main).update(__builtins__=__builtins__, __spec__=None, __annotations__={})
    sys.path[0] = "" if first == "-c" else request["folder"] if first == "-m" else os.path.dirname(os.path.realpath(first))
    sys.orig_argv = [sys.executable, first, *others]
    if os.path.isdir(first):
        sys.path[0], sys.argv = first, [first, *others]
        return lambda: runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
    if first == "-m":
        sys.argv = ["-m", *others[1:]]
        return lambda: runpy._run_module_as_main(others[0])  # type: ignore[attr-defined]
    if first == "-c":
        sys.argv = ["-c", *others[1:]]
        code = compile(others[0], "<string>", "exec", dont_inherit=True)
    else:
        sys.argv = [first, *others]
        main.__file__ = first
        code = compile(Path(first).read_bytes(), first, "exec", dont_inherit=True)
    return lambda: exec(code, vars(main))  # noqa: S102


def _show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """Print an error of the program without the frames of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


if __name__ == "__main__":
    import jax  # noqa: F401
    import torch._dynamo
    import torch.distributed.tensor  # noqa: F401  # with the first operation on a tensor of any subclass

    gc.collect()
    gc.freeze()  # programs leave alone what is here, also when they end
    _program(_serve(socket.socket(fileno=int(sys.argv[1]))))()

"""The coordinator of a job: a process that serves its rendezvous and JAX's runtime, and outlives whichever replica dies.

Whoever starts a job starts it, the launching process or process 0. It loads neither torch nor jax.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xla_distributed._compat import runtime_service
from xla_distributed.job import protocol
from xla_distributed.job.server import Server

# The package without what it imports when it is loaded, torch and jax among it.
_PROGRAM = """
import sys, types
package = sys.modules["xla_distributed"] = types.ModuleType("xla_distributed")
package.__path__ = [sys.argv[1]]
from xla_distributed.job.coordinator import serve
serve()
"""
_ATTEMPTS = 3
_RUNNING: set[subprocess.Popen[str]] = set()  # started by this process


class StartError(Exception):
    """The coordinator did not start."""


@dataclass(frozen=True, slots=True)
class Coordinator:
    """A running coordinator. address: where its server listens."""

    address: protocol.Address
    process: subprocess.Popen[str]

    def expect(self, pids: Sequence[int]) -> None:
        """Say which processes of this host, by their numbers in the job, are to join: one that ends before it has is lost to the others."""
        if self.process.stdin is not None:
            self.process.stdin.write(f"{json.dumps(list(pids))}\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """End it; for when all processes of the job have ended. By itself it ends with the last of them, if this process has ended, too."""
        # It ignores SIGTERM (`serve`).
        _RUNNING.discard(self.process)
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def start(host: str, size: int, key: bytes, heartbeat: float) -> Coordinator:
    """Start the coordinator of a job of `size` processes that know `key`, on an address of this host.

    heartbeat: seconds without one after which a process is lost. Raises StartError.
    """
    config = json.dumps({"host": host, "size": size, "key": key.hex(), "heartbeat": heartbeat})
    for _ in range(_ATTEMPTS):
        # -P: no file in the user's working folder stands in for a module of the standard library.
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(Path(__file__).parents[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},  # a warning at each start would say nothing
            start_new_session=True,  # what ends a process group, Ctrl-C included, is for the replicas
        )
        address, output = _address(process, config)
        if address is not None:
            _RUNNING.add(process)
            return Coordinator(address, process)
        if process.wait() >= 0:
            break
        # It was ended by a signal: so JAX's service does if somebody took its port just before it.
    raise StartError(f"the coordinator of the job did not start on {host}: {output or f'exit code {process.returncode}'}")


def _address(process: subprocess.Popen[str], config: str) -> tuple[protocol.Address | None, str]:
    """The address on which a coordinator of this configuration listens, None if it does not start, and what else it printed."""
    stdin, stdout = process.stdin, process.stdout
    if stdin is None or stdout is None:
        raise StartError("the coordinator has no pipes")
    try:
        # The key is in it, and arguments can be read by all users of the host.
        stdin.write(f"{config}\n")
        stdin.flush()
    except BrokenPipeError:
        pass  # what it printed before is read below
    output: list[str] = []
    with stdout:
        for line in stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                return (str(answer["host"]), int(answer["port"])), "".join(output)
            output.append(line)
    return None, "".join(output).strip()


def _leave_to_parent() -> None:
    """In a child of `os.fork`: a coordinator ends with the process that started it, not with its children."""
    for process in _RUNNING:
        if process.stdin is not None:
            process.stdin.close()
    _RUNNING.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def serve() -> None:
    """Run the coordinator: print where it listens, and serve until stdin is closed and all who joined have ended."""
    for signal_number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signal_number, signal.SIG_IGN)  # managers send these to all processes of a job; the replicas decide what they mean
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))  # each process of the job has two connections to this one
    config = json.loads(sys.stdin.readline())
    runtime_address = _free_address(config["host"])
    service = runtime_service(runtime_address, config["size"])
    server = Server(config["host"], config["size"], bytes.fromhex(config["key"]), config["heartbeat"], runtime_address)
    print(json.dumps({"host": server.address[0], "port": server.address[1]}), flush=True)
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # nobody reads on
        os.dup2(devnull, stream)
    # Ends when whoever started this has ended, however that went: the system closes the other end of the pipe.
    for line in sys.stdin:
        server.expect(dict(enumerate(json.loads(line))))
    server.wait_until_over()
    del service  # until here it must live
    os._exit(0)


def _free_address(host: str) -> str:
    family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(address)
        return f"{host}:{probe.getsockname()[1]}"

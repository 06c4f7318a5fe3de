"""The coordinator of a job: a process that serves its meetings and JAX's processes, and outlives whichever replica dies.

Whoever starts a job starts it, the launching process or process 0. It loads neither torch nor jax.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from xla_distributed import wire
from xla_distributed._compat import runtime_service
from xla_distributed.server import Server

# The package without what it imports when it is loaded, torch and jax among it.
_PROGRAM = """
import sys, types
package = sys.modules["xla_distributed"] = types.ModuleType("xla_distributed")
package.__path__ = [sys.argv[1]]
from xla_distributed.coordinator import serve
serve()
"""
_ATTEMPTS = 3


class StartError(Exception):
    """The coordinator did not start."""


@dataclass(frozen=True, slots=True)
class Coordinator:
    """A running coordinator. address: where its server listens."""

    address: wire.Address
    process: subprocess.Popen[str]

    def close(self) -> None:
        """End it; for when all processes of the job have ended. By itself it ends with the last of them, if this process has ended, too."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def start(host: str, size: int, key: bytes, heartbeat: float) -> Coordinator:
    """Start the coordinator of a job of `size` processes that know `key`, on an address of this host.

    heartbeat: seconds after which a process that says nothing is lost. Raises StartError.
    """
    told = json.dumps({"host": host, "size": size, "key": key.hex(), "heartbeat": heartbeat})
    for _ in range(_ATTEMPTS):
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(Path(__file__).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},  # a warning at each start would say nothing
            start_new_session=True,  # what ends a process group, Ctrl-C included, is for the replicas
        )
        address, said = _ask(process, told)
        if address is not None:
            return Coordinator(address, process)
        if process.wait() >= 0:
            break
        # It was ended by a signal: so JAX's service does if somebody took its port just before it.
    raise StartError(f"the coordinator of the job did not start on {host}: {said or f'exit code {process.returncode}'}")


def _ask(process: subprocess.Popen[str], told: str) -> tuple[wire.Address | None, str]:
    """Ask the coordinator where it listens; None if it does not start, and what else it says."""
    stdin, stdout = process.stdin, process.stdout
    if stdin is None or stdout is None:
        raise StartError("the coordinator has no pipes")
    try:
        stdin.write(f"{told}\n")
        stdin.flush()
    except BrokenPipeError:
        pass  # what it has to say of that is read below
    said: list[str] = []
    with stdout:
        for line in stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                return (str(answer["host"]), int(answer["port"])), "".join(said)
            said.append(line)
    return None, "".join(said).strip()


def serve() -> None:
    """Run the coordinator: tell on stdout where it listens, and serve until stdin is closed and all who joined have ended."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # managers send these to all processes of a job; the replicas decide what they mean
    told = json.loads(sys.stdin.readline())
    runtime = _free_address(told["host"])
    service = runtime_service(runtime, told["size"])
    server = Server(told["host"], told["size"], bytes.fromhex(told["key"]), told["heartbeat"], runtime)
    print(json.dumps({"host": server.address[0], "port": server.address[1]}), flush=True)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # nobody reads on
        os.dup2(nowhere, stream)
    sys.stdin.read()
    server.wait_until_over()
    del service  # until here it must live
    os._exit(0)


def _free_address(host: str) -> str:
    family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(address)
        return f"{host}:{probe.getsockname()[1]}"

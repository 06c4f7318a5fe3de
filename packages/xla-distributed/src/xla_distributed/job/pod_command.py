"""Run one command on all hosts of a Cloud TPU pod at once, by Google's command line tool: `python -m torch_xla.distributed.xla_dist`.

The hosts find each other by themselves once the command uses devices (`cluster.py`); so nothing about them is passed on.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence

from xla_distributed.errors import JobError

_END_SECONDS = 5.0
_POLL_SECONDS = 0.1


def get_args_parser() -> argparse.ArgumentParser:
    """The parser of the command line; what it gives is for `resolve_and_execute`."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_xla.distributed.xla_dist",
        description="Run a command on all hosts of a Cloud TPU pod, through ssh as gcloud does it.",
        epilog="example: python -m torch_xla.distributed.xla_dist --tpu=my-pod --env=XLA_USE_SPMD=1 -- python3 train.py",
    )
    parser.add_argument("--tpu", required=True, help="name of the TPU")
    parser.add_argument("--vm", action="append", help="run on this Compute Engine VM instead of the TPU's hosts; may be repeated")
    parser.add_argument("--zone", help="zone of the TPU or the VMs; that of gcloud's configuration if it is not given")
    parser.add_argument("--project", help="project of the TPU or the VMs; that of gcloud's configuration if it is not given")
    parser.add_argument("--internal-ip", action="store_true", help="reach the hosts by their internal addresses, from inside their network")
    parser.add_argument("--env", action="append", help="variable of the command, NAME=value; may be repeated")
    parser.add_argument("--restart-tpuvm-pod-server", action="store_true", help="nothing: there is no such server any more")
    parser.add_argument("positional", nargs="+", help="the command and its arguments")
    return parser


def resolve_and_execute(args: argparse.Namespace) -> None:
    """Run the command on all hosts and wait for it; output and ssh are gcloud's.

    args: from `get_args_parser`. Raises ValueError for arguments that say no command, or no variable; JobError if gcloud is not
    there or the command fails on a host, once it was ended on the others.
    """
    command = _remote_command(args.positional, args.env or ())
    if shutil.which("gcloud") is None:
        raise JobError("xla_dist reaches the hosts of a TPU by gcloud, which is not there: install the Google Cloud CLI, and log in")
    location_flags = [f"--{name}={text}" for name in ("zone", "project") if (text := getattr(args, name))]
    location_flags += ["--internal-ip"] if args.internal_ip else []
    if args.vm:
        targets = [["compute", "ssh", vm] for vm in args.vm]
    else:
        targets = [["compute", "tpus", "tpu-vm", "ssh", args.tpu, "--worker=all"]]
    _run_all([["gcloud", *target, *location_flags, f"--command={command}"] for target in targets])


def _remote_command(words: Sequence[str], variables: Sequence[str]) -> str:
    """The command as a shell reads it, with its variables: after `sudo`, which would drop them."""
    words = [word for word in words if word]
    if not words:
        raise ValueError("there is no command to run on the hosts: give it after the options, as in --tpu=NAME -- python3 train.py")
    for variable in variables:
        if not re.match(r"[A-Za-z_]\w*=", variable):
            raise ValueError(f"--env is {variable!r}, must be NAME=value")
    sudo = words[:1] if words[0] == "sudo" else []
    return shlex.join([*sudo, *(["env", *variables] if variables else []), *words[len(sudo) :]])


def _run_all(commands: Sequence[Sequence[str]]) -> None:
    """Run commands side by side; when one fails, end the others. Raises JobError."""
    running = [subprocess.Popen(command) for command in commands]
    try:
        waiting = list(running)
        while waiting:
            for process in list(waiting):
                try:
                    code = process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
                waiting.remove(process)
                if code:
                    raise JobError(f"exit code {code} of: {shlex.join(map(str, process.args))}")  # type: ignore[arg-type]
    finally:
        _end(running)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that `arguments` say, those of this program if None."""
    resolve_and_execute(get_args_parser().parse_args(arguments))

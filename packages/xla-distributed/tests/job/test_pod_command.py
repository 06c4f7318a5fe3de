"""`xla_dist`: a command on all hosts of a pod, with a `gcloud` that runs it here and keeps what it was asked."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from torch_xla.distributed import xla_dist
from xla_distributed.errors import JobError

GCLOUD = """#!{python}
import json, os, subprocess, sys
with open({log!r}, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
command = next(word.partition("=")[2] for word in sys.argv if word.startswith("--command="))
os.execvp("sh", ["sh", "-c", "exec " + command])
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`asked()`: what `gcloud` was called with, each time."""
    log = tmp_path / "log"
    tool = tmp_path / "bin" / "gcloud"
    tool.parent.mkdir()
    tool.write_text(GCLOUD.format(python=sys.executable, log=str(log)))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    return lambda: [json.loads(line) for line in log.read_text().splitlines()]


def test_as_accelerate_calls_it(asked: Any, tmp_path: Path) -> None:
    """It parses options of its own making, puts its own arguments in their place, and gives command and variables as lists."""
    args, rest = xla_dist.get_args_parser().parse_known_args(["--tpu", "my-pod", "--positional", "", "--restart-tpuvm-pod-server"])
    assert rest == ["--positional"] and args.restart_tpuvm_pod_server
    assert not [name for name in vars(args) if name.startswith("docker_")], "accelerate refuses those that are set"
    args.vm = None
    result = tmp_path / "result"
    program = f"import os; open({str(result)!r}, 'w').write(os.environ['XLA_USE_BF16'] + os.environ['ACCELERATE_IN_TPU_POD'])"
    args.positional = [sys.executable, "-c", program]
    args.env = ["XLA_USE_BF16=1", "ACCELERATE_IN_TPU_POD=1"]
    xla_dist.resolve_and_execute(args)
    assert result.read_text() == "11"
    command = shlex.join(["env", *args.env, *args.positional])
    assert asked() == [["compute", "tpus", "tpu-vm", "ssh", "my-pod", "--worker=all", f"--command={command}"]]


def parse(*words: str) -> argparse.Namespace:
    return xla_dist.get_args_parser().parse_args(["--tpu=my-pod", *words])


def test_the_command_line(asked: Any) -> None:
    xla_dist.main(["--tpu=my-pod", "--zone=us-central2-b", "--project=p", "--internal-ip", "--env=A=b c", "--", "true", "--flag"])
    where = ["--zone=us-central2-b", "--project=p", "--internal-ip"]
    command = "--command=env 'A=b c' true --flag"
    assert asked() == [["compute", "tpus", "tpu-vm", "ssh", "my-pod", "--worker=all", *where, command]]


def test_variables_come_after_sudo(asked: Any, tmp_path: Path) -> None:
    sudo = tmp_path / "bin" / "sudo"
    sudo.write_text('#!/bin/sh\nexec env -i "$@"\n')  # it drops the variables that it was given
    sudo.chmod(0o755)
    xla_dist.resolve_and_execute(parse("--env=A=1", "--", "sudo", "/bin/sh", "-c", 'test "$A" = 1'))
    assert asked()[0][-1].startswith("--command=sudo env A=1 /bin/sh")


def test_a_host_that_fails_ends_the_others(asked: Any, tmp_path: Path) -> None:
    # The first one fails when the other is there.
    first, second = (shlex.quote(str(tmp_path / name)) for name in ("first", "second"))
    script = f"if mkdir {first} 2>/dev/null; then until test -e {second}; do sleep 0.01; done; exit 7; fi; mkdir {second}; exec sleep 600"
    (tmp_path / "bin" / "once").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin" / "once").chmod(0o755)
    # Without its end, the other would sleep.
    with pytest.raises(JobError, match="exit code 7 of: gcloud compute ssh"):
        xla_dist.resolve_and_execute(parse("--vm=one", "--vm=two", "--", "once"))
    assert sorted(call[2] for call in asked()) == ["one", "two"]


def test_wrong_use(asked: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no command"):
        xla_dist.resolve_and_execute(parse("--", ""))
    with pytest.raises(ValueError, match=r"'NO VALUE', must be NAME=value"):
        xla_dist.resolve_and_execute(parse("--env=NO VALUE", "true"))
    with pytest.raises(SystemExit):
        xla_dist.get_args_parser().parse_args(["true"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobError, match="install the Google Cloud CLI"):
        xla_dist.resolve_and_execute(parse("true"))

"""A process whose address space ends while XLA compiles: it may be ended, but leaves no wrong value and no damaged program behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys
import torch, torch_xla
x = torch.full((64, 64), 0.125, device="xla")
(x + 1).cpu()  # the client has its threads
y = x
for turn in range(20):
    y = torch.softmax(y @ x, -1) * torch.sin(y + turn)
spare = int(sys.argv[1])
if spare >= 0:
    held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + (spare << 20),) * 2)
print(y.double().sum().item())
"""


def run(folder: Path, spare: int) -> subprocess.CompletedProcess[str]:
    """The program with `spare` MiB left for what it still has to do; without a limit if negative."""
    environment = {**os.environ, "XLA_PERSISTENT_CACHE_PATH": str(folder)}
    return subprocess.run([sys.executable, "-c", PROGRAM, str(spare)], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_compiler_without_memory_leaves_nothing_wrong(tmp_path: Path) -> None:
    expected = run(tmp_path / "other", -1).stdout
    limited = [run(tmp_path / "cache", spare) for spare in (0, 12)]
    for done in limited:
        assert done.stdout == expected if done.returncode == 0 else not done.stdout, done.stdout
    assert limited[0].returncode != 0, "there was a limit"
    after = run(tmp_path / "cache", -1)
    assert (after.returncode, after.stdout, after.stderr) == (0, expected, "")

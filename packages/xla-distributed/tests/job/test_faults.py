"""Whichever replica is at fault, and whenever: the others end soon, with an error that names it and what was wrong, never by a signal."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forked_python
import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "faults.py"
MOMENTS = ("start", "compile", "collective", "exit")
SUDDEN = ("SIGKILL", "SIGSTOP", "SIGINT", "os._exit")
FAULTS = ("raise", "return", "skip", *SUDDEN)
CAUSES = {
    "raise": "it failed with ValueError: the culprit",
    "return": "has left the job",
    "skip": "has left the job|CollectiveMismatchError: replicas disagree",
    "SIGKILL": "its process has died",
    "SIGTERM": "its process has died",
    "SIGSTOP": "its process is stopped",
    "SIGINT": "it failed with KeyboardInterrupt",
    "os._exit": "its process has died",
}
SOON = 20.0  # seconds from the fault to the end of all others: twice what is promised, for a machine that does more than this


def variables(manager: str, rank: int, size: int, port: int) -> dict[str, str]:
    """The variables that place a process in a job."""
    if manager == "slurm":
        place = {"SLURM_NTASKS": size, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}
        return {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "localhost", "MASTER_PORT": str(port), **texts(place)}
    if manager == "mpi":
        place = {"OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank}
        return {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://127.0.0.1:1", "MASTER_PORT": str(port), **texts(place)}
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", **texts(place)}


def texts(numbers: dict[str, int]) -> dict[str, str]:
    return {name: str(number) for name, number in numbers.items()}


def runs(pid: int) -> bool:
    """True if a process has not ended, nor is only waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class FaultyJob:
    """Replicas of the program, one of which is at fault, and what started them, if that is a process of its own."""

    def __init__(self, folder: Path, launcher: str, size: int, moment: str, fault: str, rank: int) -> None:
        self.folder, self.size, self.rank = folder, size, rank
        self.arguments = [str(PROGRAM), str(folder), moment, fault, str(rank)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}  # by rank; of a launcher: -1
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if launcher == "torchrun":
            options = ["--standalone", f"--nproc-per-node={size}", "--redirects=3", f"--log-dir={folder / 'logs'}"]
            self._start(-1, ["-m", "torch.distributed.run", *options], {})
        elif launcher == "spawn":
            self._start(-1, [], {"CPU_NUM_DEVICES": str(size)})
        else:
            for number in range(size):
                self._start(number, [], variables(launcher, number, size, port))

    def _start(self, rank: int, options: list[str], others: dict[str, str]) -> None:
        environment = {name: text for name, text in os.environ.items() if name != "CPU_NUM_DEVICES"}
        environment |= {"PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1", **others}
        with open(self.folder / f"stderr-{rank}", "wb") as file:
            command = [sys.executable, *options, *self.arguments]
            self.processes[rank] = forked_python.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=file)

    def struck(self) -> float:
        """The time at which the fault was committed."""
        begin, path = time.monotonic(), self.folder / "fault"
        while not path.exists():
            assert time.monotonic() - begin < 200, f"no fault yet\n{self.errors()}"
            assert any(process.poll() is None for process in self.processes.values()), self.errors()
            time.sleep(0.02)
        return float(path.read_text(encoding="utf-8"))

    def others_end(self, limit: float) -> float:
        """Seconds from the fault to the end of the last of the others."""
        struck = self.struck()
        others = [rank for rank in range(self.size) if rank != self.rank]
        while running := [rank for rank in others if self._runs(rank)]:
            assert time.time() - struck < limit, f"replicas {running} run {limit} s after the fault\n{self.errors()}"
            time.sleep(0.02)
        return time.time() - struck

    def _runs(self, rank: int) -> bool:
        if rank in self.processes:
            return self.processes[rank].poll() is None
        path = self.folder / f"pid-{rank}"
        return not path.exists() or runs(int(path.read_text(encoding="utf-8")))

    def error(self, rank: int) -> str:
        """The stderr of a replica, or of a launcher, so far."""
        found = [self.folder / f"stderr-{rank}", *(self.folder / "logs").glob(f"**/{rank}/stderr.log")]
        return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in found if path.exists())

    def errors(self) -> str:
        return "\n".join(f"--- {rank}\n{self.error(rank)}" for rank in range(-1, self.size))

    def end(self) -> None:
        """Leave nothing behind, stopped processes included."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        for path in self.folder.glob("pid-*"):
            pid = int(path.read_text(encoding="utf-8"))
            if runs(pid):
                os.kill(pid, signal.SIGKILL)


Start = Callable[[str, int, str, str, int], FaultyJob]


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Start]:
    """`faulty(launcher, size, moment, fault, rank)`: a job that does not outlive the test."""
    started: list[FaultyJob] = []

    def run(launcher: str, size: int, moment: str, fault: str, rank: int) -> FaultyJob:
        started.append(FaultyJob(tmp_path, launcher, size, moment, fault, rank))
        return started[-1]

    yield run
    for job in started:
        job.end()


def seconds_to_a_good_end(job: FaultyJob, moment: str, fault: str) -> float:
    """Check how the others of a job without a launcher end; seconds until then."""
    seconds = job.others_end(SOON)
    for rank, process in job.processes.items():
        if rank == job.rank:
            continue
        error = job.error(rank)
        assert "Check failure" not in error and "leader task" not in error, error
        if moment == "exit" and fault in SUDDEN and process.returncode == 0:
            continue  # it had done all it was to do
        assert process.returncode == 1, (process.returncode, error)
        assert re.search(CAUSES[fault], error) and f"replica {job.rank}" in error, error
    return seconds


@pytest.mark.parametrize(
    ("moment", "fault"),
    [("collective", "raise"), ("collective", "SIGKILL"), ("collective", "SIGSTOP"), ("exit", "return")],
)
def test_a_fault_of_replica_0(faulty: Start, moment: str, fault: str) -> None:
    print(f"the others ended after {seconds_to_a_good_end(faulty('variables', 2, moment, fault, 0), moment, fault):.1f} s")


@pytest.fixture
def busy() -> Iterator[Callable[[int], None]]:
    """`busy(count)`: this many processes beside the test that do nothing but take time."""
    started: list[subprocess.Popen[bytes]] = []

    def run(count: int) -> None:
        started.extend(subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count))

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("loops", [2, pytest.param(6, marks=pytest.mark.long)])
def test_one_of_three_gets_sigterm_beside_other_work(faulty: Start, busy: Callable[[int], None], loops: int) -> None:
    """What the end of a process does most is left out, or it would take a machine with other work more than ten seconds."""
    busy(loops)
    job = faulty("variables", 3, "collective", "SIGTERM", 1)
    print(f"the others ended after {seconds_to_a_good_end(job, 'collective', 'SIGTERM'):.1f} s")
    for rank in (0, 2):
        assert int((job.folder / f"frozen-{job.processes[rank].pid}").read_text(encoding="utf-8")) > 0


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("size", "rank"), [(2, 0), (2, 1), (4, 0), (4, 2)])
def test_a_fault_of_any_replica_at_any_moment(faulty: Start, size: int, rank: int, moment: str, fault: str) -> None:
    print(f"the others ended after {seconds_to_a_good_end(faulty('variables', size, moment, fault, rank), moment, fault):.1f} s")


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("manager", ["slurm", "mpi"])
def test_a_fault_under_a_manager(faulty: Start, manager: str, fault: str) -> None:
    print(f"the others ended after {seconds_to_a_good_end(faulty(manager, 2, 'collective', fault, 0), 'collective', fault):.1f} s")


@pytest.mark.parametrize(
    ("launcher", "moment", "fault"),
    [
        ("torchrun", "collective", "raise"),
        *(
            pytest.param(launcher, moment, fault, marks=pytest.mark.long)
            for launcher in ("torchrun", "spawn")
            for moment in ("start", "compile", "collective")
            for fault in FAULTS
            if (launcher, moment, fault) != ("torchrun", "collective", "raise")
        ),
    ],
)
def test_a_fault_under_a_launcher(faulty: Start, launcher: str, moment: str, fault: str) -> None:
    """It ends the others itself, by SIGTERM, where it sees the fault before they do; then it is the one that says who was at fault."""
    job = faulty(launcher, 2, moment, fault, 0)
    print(f"the others ended after {job.others_end(SOON):.1f} s")
    if (launcher, fault) != ("torchrun", "SIGSTOP"):  # there it waits for the stopped process, half a minute
        assert job.processes[-1].wait(2 * SOON) != 0
    error = job.errors()
    assert "Check failure" not in error and "leader task" not in error, error
    if launcher == "torchrun" and fault in ("raise", "SIGKILL", "SIGINT", "os._exit"):
        assert re.search(r"Root Cause.*?\n.*?\n.*?\n\s*rank\s*:\s*0 ", error, re.DOTALL), error
    elif fault in ("SIGKILL", "os._exit"):
        assert f"process 0 terminated with {'signal SIGKILL' if fault == 'SIGKILL' else 'exit code 3'}" in error, error
    else:
        assert re.search(f"ValueError: the culprit|{CAUSES[fault]}", error), error

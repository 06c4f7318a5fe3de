"""`xla-debug watch`: a running job's recordings, merged as they are written, until its processes have ended."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import forked_python
import pytest
from click.testing import CliRunner, Result

from xla_debug import recording_folder
from xla_debug.cli import group
from xla_debug.rendering import running_job
from xla_debug.run_report import files
from xla_debug.run_report.errors import RunReportFileError
from xla_debug.run_report.schema import VERSION, Replica, RunReport

Make = Callable[..., Replica]
MakeReport = Callable[..., RunReport]
COMMAND = [sys.executable, "-c", "from xla_debug.cli import main; main()", "watch"]
JOB = """
import dataclasses, os, sys, time
from pathlib import Path
from xla_debug.run_report import files
folder, ordinal = Path(sys.argv[1]), int(sys.argv[2])
report = files.read(sys.argv[3])

def write(steps, finished):
    replica = dataclasses.replace(report.replicas[0], ordinal=ordinal, pid=os.getpid(), steps=steps, finished=finished)
    one = dataclasses.replace(report, replicas=[replica], exit_code=0 if finished else None)
    files.write(one, folder / f"account.{os.getpid()}.json")

write(50, False)
print("there", flush=True)
sys.stdin.readline()
write(100, True)
"""


@pytest.fixture
def start(full: Make, run_report: MakeReport, tmp_path: Path) -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """Starts a process of a job in `tmp_path/job`: it has written its recording, and ends after a line on its stdin."""
    files.write(run_report(full()), tmp_path / "sample.json")
    (tmp_path / "job").mkdir()
    started: list[subprocess.Popen[str]] = []

    def one(ordinal: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", JOB, str(tmp_path / "job"), str(ordinal), str(tmp_path / "sample.json")]
        process = forked_python.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "there\n"
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["watch", *map(str, arguments)])


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_look_at_a_running_job(start: Callable[[int], subprocess.Popen[str]], tmp_path: Path) -> None:
    start(0), start(1)
    result = run(tmp_path / "job", "--once")
    said = words(result.stdout)
    assert result.exit_code == 0 and "50 steps" in said and "2 replicas" in said and "still running" in said
    assert said.count("reads in the loop") == 1 and "replica 0 1" in said and "killed" not in said
    assert f"recorded in {tmp_path / 'job'}".replace(" ", "") in said.replace(" ", "")


def test_a_job_is_followed_to_its_end(start: Callable[[int], subprocess.Popen[str]], tmp_path: Path) -> None:
    processes = [start(0), start(1)]
    terminal = os.environ | {"TTY_COMPATIBLE": "1", "COLUMNS": "120"}  # or it would only show the end
    with forked_python.Popen([*COMMAND, str(tmp_path / "job")], stdout=subprocess.PIPE, text=True, env=terminal) as watching:
        assert watching.stdout is not None

        def until(part: str) -> str:
            return next(line for line in iter(watching.stdout.readline, "") if part in line)

        assert "50 steps" in until("still running")
        processes[0].communicate("end\n")
        assert [until("still running") for _ in range(3)], "one still runs"
        processes[1].communicate("end\n")
        assert "100 steps" in until("finished")
        watching.communicate()
    assert watching.returncode == 0


def test_a_killed_process_ends_the_watch(start: Callable[[int], subprocess.Popen[str]], tmp_path: Path) -> None:
    one, other = start(0), start(1)
    one.kill()
    one.communicate()
    other.communicate("end\n")
    done = forked_python.run([*COMMAND, str(tmp_path / "job")], capture_output=True, text=True, check=True)
    assert f"process {one.pid} of replica 0 ended without a last recording" in words(done.stdout) and str(other.pid) not in done.stdout


def test_processes_of_other_hosts_are_believed(full: Make, run_report: MakeReport) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert running_job.has_ended(run_report(full(0, pid=gone.pid, finished=False), full(1)))
    assert not running_job.has_ended(run_report(full(0, pid=gone.pid, finished=False, host="another"), full(1)))
    assert not running_job.has_ended(run_report(full(0, pid=os.getpid(), finished=False)))


def test_an_interrupt_ends_it_quietly(
    start: Callable[[int], subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start(0)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running_job.time, "sleep", interrupt)
    result = run(tmp_path / "job")
    assert result.exit_code == 0 and "50 steps" in result.stdout and result.stderr == ""


def test_the_folder_of_a_process(full: Make, run_report: MakeReport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"xla-debug-{os.getuid()}" / str(os.getpid())
    assert f"process {os.getpid()} is not recorded" in error(os.getpid())
    folder.mkdir(parents=True)
    assert running_job.folder_of(str(os.getpid())) == folder
    assert "nothing is recorded yet" in error(os.getpid(), "--once")
    files.write(run_report(full()), folder / "account.7.json")
    assert "100 steps" in run(os.getpid()).stdout
    assert running_job.folder_of("7") == folder, "of a process that it started"


def test_a_process_that_ended_without_a_recording(
    monkeypatch: pytest.MonkeyPatch, full: Make, run_report: MakeReport, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder = tmp_path / f"xla-debug-{os.getuid()}" / str(gone.pid)
    folder.mkdir(parents=True)
    assert "has ended and left no recording" in error(gone.pid)
    files.write(run_report(full()), folder / "account.7.json")
    assert run(gone.pid).exit_code == 0, "what it left can be seen"


def error(*arguments: object) -> str:
    """The one line on stderr with which the command ends."""
    result = run(*arguments)
    assert result.exit_code == 2 and result.stdout == "" and result.stderr.count("\n") == 1
    return result.stderr


def test_unknown_folders(tmp_path: Path) -> None:
    assert "there is no such folder" in error(tmp_path / "none") and "there is no such folder" in error("2" * 400)
    assert "nothing is recorded yet" in error(tmp_path, "--once")


def test_unknown_processes(full: Make, run_report: MakeReport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert "is not recorded" in error("4000000000")
    recording_folder.make_folder(7)
    files.write(run_report(full()), recording_folder.folder_of(7) / "account.7.json")
    assert "is not recorded" in error("4000000000"), "nor where others do"


def test_recordings_that_cannot_be_read(full: Make, run_report: MakeReport, tmp_path: Path) -> None:
    files.write(run_report(full(), version=VERSION + 1), tmp_path / "account.1.json")
    result = run(tmp_path)
    assert result.exit_code == 2 and "upgrade it" in result.stderr


def test_recordings_that_are_taken_away(full: Make, run_report: MakeReport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "account.1.json"
    files.write(run_report(full(finished=False, pid=os.getpid())), path)
    monkeypatch.setattr(running_job.time, "sleep", lambda seconds: path.unlink())
    result = run(tmp_path)
    assert result.exit_code == 0 and "100 steps" in result.stdout


def test_a_file_that_vanishes_while_it_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [folder / "account.1.json"])
    assert running_job.report_of(tmp_path) is None
    (tmp_path / "account.1.json").write_text("no")
    with pytest.raises(RunReportFileError, match="not JSON"):
        running_job.report_of(tmp_path)

"""Files replaced atomically: by the new contents whole, or left as they were."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import forked_python
import pytest

from xla_core.base import files


def test_the_new_contents_take_the_place_of_the_old(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with files.atomic_write(target) as temporary:
        temporary.write_bytes(b"new")
        assert target.read_bytes() == b"old" and temporary.parent == tmp_path
    assert target.read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]
    files.atomic_write_bytes(target, b"newer", durable=True)
    assert target.read_bytes() == b"newer" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [OSError("injected"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_what_fails_leaves_the_old_contents_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(type(error)), files.atomic_write(target) as temporary:
        temporary.write_bytes(b"ne")
        raise error
    assert target.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_a_target_that_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        files.atomic_write_bytes(tmp_path / "folder", b"new")
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        files.atomic_write_bytes(tmp_path / "nowhere" / "file", b"new")


def test_mode_bits_are_those_asked_for_less_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        files.atomic_write_bytes(tmp_path / "all", b"")
        files.atomic_write_bytes(tmp_path / "mine", b"", mode=0o600)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"all": 0o644, "mine": 0o600}


def test_a_temporary_file_of_the_callers_own(tmp_path: Path) -> None:
    with files.atomic_write(tmp_path / "file", tmp_path / "mine") as temporary:
        assert temporary == tmp_path / "mine" and not temporary.exists()
        temporary.write_bytes(b"new")
    assert (tmp_path / "file").read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]


def test_durable_files_are_synchronized_before_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def fsync(fd: int) -> None:
        synced.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        assert (tmp_path / "file").exists() == (synced[-1] == "folder")

    monkeypatch.setattr(os, "fsync", fsync)
    files.atomic_write_bytes(tmp_path / "file", b"new", durable=True)
    assert synced == ["file", "folder"]
    files.atomic_write_bytes(tmp_path / "file", b"newer")
    assert synced == ["file", "folder"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL])
def test_a_folder_that_cannot_be_synchronized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fsync(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    if number == errno.EINVAL:  # a file system that synchronizes none
        files.sync_folder(tmp_path)
    else:
        with pytest.raises(OSError, match=tmp_path.name):
            files.sync_folder(tmp_path)
    with pytest.raises(OSError, match=tmp_path.name):
        files.sync_file(tmp_path)


WRITER = """
import os, signal, sys
from pathlib import Path
from xla_core.base.files import atomic_write

folder = Path(sys.argv[1])
for line in sys.stdin:
    if os.fork():  # a process for each write: starting Python takes longer
        continue
    with atomic_write(folder / line.strip()) as temporary:
        temporary.write_bytes(bytes(1000))
        print(os.getpid(), temporary.name, flush=True)
        signal.pause()
"""


class Writers:
    """Processes that wait in the middle of a write."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", WRITER, str(folder)]
        self._server = forked_python.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._alive: set[int] = set()

    def start(self, target: str) -> tuple[int, str]:
        """A process that writes to a file; gives its id, and the name of its temporary file."""
        assert self._server.stdin is not None and self._server.stdout is not None
        print(target, file=self._server.stdin, flush=True)
        pid, name = self._server.stdout.readline().split()
        self._alive.add(int(pid))
        return int(pid), name

    def kill(self, pid: int) -> None:
        """Kill it and wait until the system has unlocked what it had: not the parent, which would only see it end."""
        descriptor = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([descriptor], [], [], 60)
        os.close(descriptor)
        self._alive.remove(pid)

    def end(self) -> None:
        """Kill all."""
        for pid in list(self._alive):
            self.kill(pid)
        self._server.kill()
        self._server.communicate(timeout=60)


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[Writers]:
    """Of one folder."""
    made = Writers(tmp_path)
    yield made
    made.end()


def test_what_killed_writers_leave_is_gone_after_the_next_write(tmp_path: Path, writers: Writers) -> None:
    pids = [writers.start(f"file{number % 3}")[0] for number in range(20)]
    assert len(os.listdir(tmp_path)) == 20
    for pid in pids:
        writers.kill(pid)
    files.atomic_write_bytes(tmp_path / "other", b"new")
    assert os.listdir(tmp_path) == ["other"]


def test_the_file_of_a_live_writer_stays(tmp_path: Path, writers: Writers) -> None:
    dead, _ = writers.start("file")
    alive, name = writers.start("file")
    writers.kill(dead)
    files.atomic_write_bytes(tmp_path / "file", b"new")
    assert set(os.listdir(tmp_path)) == {"file", name}
    os.utime(tmp_path / name, (0, 0))  # whatever its age
    files.atomic_write_bytes(tmp_path / "file", b"newer")
    assert set(os.listdir(tmp_path)) == {"file", name}
    writers.kill(alive)
    files.atomic_write_bytes(tmp_path / "file", b"newest")
    assert os.listdir(tmp_path) == ["file"]


def test_the_file_of_another_thread_stays(tmp_path: Path) -> None:
    def write(name: str) -> None:
        for _ in range(50):
            files.atomic_write_bytes(tmp_path / name, name.encode())

    with files.atomic_write(tmp_path / "outer") as outer, ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
        assert outer.exists()
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c", "d", "outer"]


def test_a_forked_child_of_the_writer_does_not_keep_its_lock(tmp_path: Path) -> None:
    """One that lives on after the write has the descriptor, too: a lock that it held would name a file that is long in place."""
    program = f"""
import fcntl, os, signal
from xla_core.base.files import atomic_write
with atomic_write({str(tmp_path / "file")!r}):
    child = os.fork()
    if not child:
        signal.pause()
with open({str(tmp_path / "file")!r}, "rb") as file:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""
    forked_python.run([sys.executable, "-c", program], check=True, timeout=60)
    assert os.listdir(tmp_path) == ["file"]


def test_only_files_of_this_kind_are_removed(tmp_path: Path, writers: Writers) -> None:
    pid, name = writers.start("file")
    writers.kill(pid)
    stem, random = name.rsplit("-", 1)
    kept = [f"{name}.bak", name[1:], f"{stem}-{random[1:]}", f".file.{'0' * 16}", f"{stem}-{random.upper().replace('0', 'A')}", ".hidden"]
    for other in kept:
        (tmp_path / other).write_bytes(b"a user's")
    os.mkfifo(tmp_path / f"{stem}-{'1' * 16}.xla-tmp")
    (tmp_path / f"{stem}-{'2' * 16}.xla-tmp").mkdir()
    (tmp_path / f"{stem}-{'3' * 16}.xla-tmp").symlink_to(tmp_path / ".hidden")
    before = set(os.listdir(tmp_path))
    files.atomic_write_bytes(tmp_path / "file", b"new")
    assert set(os.listdir(tmp_path)) == before - {name} | {"file"}


def test_a_leftover_of_another_machine_is_removed_when_it_is_a_day_old(tmp_path: Path, writers: Writers) -> None:
    """Its locks need not be seen here."""
    pid, name = writers.start("file")
    writers.kill(pid)
    elsewhere = tmp_path / f".file.{'0' * 16}-{'1' * 16}.xla-tmp"
    (tmp_path / name).rename(elsewhere)
    files.atomic_write_bytes(tmp_path / "file", b"new")
    assert elsewhere.exists()
    day = 86_400
    now = (tmp_path / "file").stat().st_mtime
    for age, stays in ((day - 3600, True), (day + 3600, False)):
        os.utime(elsewhere, (now - age, now - age))
        files.atomic_write_bytes(tmp_path / "file", b"new")
        assert elsewhere.exists() == stays


def test_a_file_system_without_locks_keeps_leftovers(tmp_path: Path, writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    pid, name = writers.start("file")
    writers.kill(pid)

    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    files.atomic_write_bytes(tmp_path / "file", b"new")
    assert set(os.listdir(tmp_path)) == {"file", name} and (tmp_path / "file").read_bytes() == b"new"


def test_a_large_folder_is_listed_once(tmp_path: Path, writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MANY_NAMES", 10)
    for number in range(11):
        (tmp_path / str(number)).touch()
    names = []
    for _ in range(2):
        pid, name = writers.start("file")
        names.append(name)
        writers.kill(pid)
        files.atomic_write_bytes(tmp_path / "file", b"new")
    assert [name in os.listdir(tmp_path) for name in names] == [False, True], "the second one is left to other processes"


def test_a_folder_that_cannot_be_listed_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listdir(folder: Path) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    monkeypatch.setattr(os, "listdir", listdir)
    files.atomic_write_bytes(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_file_taken_for_a_leftover_before_it_was_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the one who cleans up has done by then: it holds the lock, or has removed the file."""
    real, made = fcntl.flock, []

    def flock(fd: int, operation: int) -> None:
        (only,) = tmp_path.iterdir()
        made.append(only)
        if len(made) == 1:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        if len(made) == 2:
            only.unlink()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with files.atomic_write(tmp_path / "file") as temporary:
        monkeypatch.undo()
        temporary.write_bytes(b"new")
    assert (tmp_path / "file").read_bytes() == b"new" and len(set(made)) == 3 and made[2] == temporary


RACER = """
import sys
from pathlib import Path
from xla_core.base.files import atomic_write_bytes
for number in range(300):
    atomic_write_bytes(Path(sys.argv[1]) / f"{number % 5}", sys.argv[2].encode() * 100)
"""


def test_writers_that_clean_up_at_once_disturb_none(tmp_path: Path) -> None:
    racers = [
        forked_python.Popen([sys.executable, "-c", RACER, str(tmp_path), mark], stderr=subprocess.PIPE, text=True)
        for mark in ("a", "b", "c")
    ]
    said = [racer.communicate(timeout=120)[1] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0], said
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2", "3", "4"]
    assert {(tmp_path / str(number)).read_text() for number in range(5)} <= {"a" * 100, "b" * 100, "c" * 100}


STRANGE_NAMES = {"long": "x" * 255, "two": "ä" * 127, "three": "\N{SNOWMAN}" * 85, "bytes": "\udcff" * 255, "line": "-\n.."}


@pytest.mark.parametrize("name", STRANGE_NAMES.values(), ids=STRANGE_NAMES)
def test_names_as_long_and_strange_as_the_system_lets_them_be(tmp_path: Path, name: str) -> None:
    with files.atomic_write(tmp_path / name) as temporary:
        temporary.write_bytes(b"new")
        temporary.name.encode()  # an error that names it can be printed
    assert os.listdir(tmp_path) == [name]


KILLED = """
import os, signal, sys
from pathlib import Path
from xla_core.engine.compile import disk
from xla_core.engine.compile.entry import Identity
from xla_core.features.export.steps import step_file
from xla_core.features.export.steps.step_description import STEP, Description

folder = Path(sys.argv[1])
description = Description(1, "step", "1.0.0", {}, {}, {}, 0, ())


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def contents():
    yield b"state" * 10_000
    die()


def store():
    disk.sync_file = die
    disk.DiskCache(folder / "cache", readonly=False).store(Identity("0" * 64, "interface", "environment"), b"program" * 1000)


def export():
    step_file.write(folder / "step", STEP, [50_000, 1], contents(), lambda parts: description)


for write in [store, export] * 20:
    child = os.fork()
    if not child:
        write()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


def test_programs_and_steps_of_killed_processes_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    forked_python.run([sys.executable, "-c", KILLED, str(tmp_path)], check=True, timeout=300)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(left) == 2 and all(path.stat().st_size >= 5000 for path in left), "each removed what the one before had left"
    for folder in (tmp_path, tmp_path / "cache"):
        files.atomic_write_bytes(folder / "next", b"")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["cache", "cache/next", "next"]

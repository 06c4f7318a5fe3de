"""Where running jobs keep their recordings."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import forked_python
import pytest

from xla_debug import recording_folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_folder_is_made_anew_and_for_its_user_alone(tmp_path: Path) -> None:
    folder = recording_folder.make_folder(12)
    assert folder == recording_folder.folder_of(12) == tmp_path / f"xla-debug-{os.getuid()}" / "12"
    assert [place.stat().st_mode & 0o777 for place in (folder, folder.parent)] == [0o700, 0o700]
    (folder / "account.12.json").write_text("of a process that was killed", encoding="utf-8")
    assert list(recording_folder.make_folder(12).iterdir()) == []


def test_the_place_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording_folder.make_folder(12)
    other = os.getuid() + 1
    taken = f"xla-debug-{other}"
    (tmp_path / taken).mkdir()
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(PermissionError, match=taken):
        recording_folder.make_folder(12)


PROGRAM = """
import sys, tempfile
from xla_debug import recording_folder
tempfile.tempdir = sys.argv[1]
recording_folder.make_folder(int(sys.argv[2]))
print("made", flush=True)
sys.stdin.read()
"""


def test_folders_of_killed_processes_go_a_day_after_the_last_recording(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    processes = [forked_python.Popen([*command, pid], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for pid in ("7", "8", "9")]
    parent = tmp_path / f"xla-debug-{os.getuid()}"
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == b"made\n"
        for process in processes[:2]:
            process.kill()
            process.wait(timeout=60)
        (parent / "7" / "account.7.json").write_text("of a process that was killed", encoding="utf-8")
        (parent / "others").mkdir()
        for name in ("7", "9", "others"):
            os.utime(parent / name, (time.time() - 90_000,) * 2)
        recording_folder.make_folder(12)
        assert sorted(folder.name for folder in parent.iterdir()) == ["12", "8", "9", "others"], "8 is young, 9 lives"
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=60)
    recording_folder.make_folder(13)
    assert sorted(folder.name for folder in parent.iterdir()) == ["12", "13", "8", "others"]

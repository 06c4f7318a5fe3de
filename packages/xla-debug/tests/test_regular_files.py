"""Readers of files that users name: a pipe is not waited for, a device is not read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from xla_debug.analysis.frame_parser import process_frames
from xla_debug.commands import graph
from xla_debug.profiling.profile_file import ProfileFileError, kernels
from xla_debug.recording.appends import appending_line
from xla_debug.regular_files import read_bytes
from xla_debug.run_report import files
from xla_debug.run_report.errors import RunReportFileError

READERS: dict[str, Callable[[Path], object]] = {
    "bytes": read_bytes,
    "report": files.read,
    "graph": lambda path: graph._text(path, None),
    "frames": process_frames,
    "profile": lambda path: list(kernels(path.parent)),
}
REFUSALS = (OSError, RunReportFileError, ProfileFileError, graph.file_io.CommandError)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("made", ["pipe", "zero", "folder", "link"])
def test_only_regular_files_are_read(tmp_path: Path, reader: str, made: str) -> None:
    path = tmp_path / "host.xplane.pb"
    if made == "pipe":
        os.mkfifo(path)
    elif made == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if made == "zero" else path.name)
    with pytest.raises(REFUSALS, match="host.xplane.pb"):
        READERS[reader](path)


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    assert read_bytes(tmp_path / "link") == b"text"


def test_source_that_is_no_file_has_no_lines(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "source.py")
    assert appending_line("losses", [str(tmp_path / "source.py")]) is None

"""Where running jobs keep their recordings."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

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

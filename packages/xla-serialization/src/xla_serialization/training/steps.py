"""The checkpoints of a run: a folder for each step, below one path."""

from __future__ import annotations

import re
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from xla_serialization.core import files
from xla_serialization.format import folder as folders
from xla_serialization.format.files import locked
from xla_serialization.format.manifest import INDEX

_STEP = re.compile(r"0|[1-9]\d*")


def folder_of(path: Path, step: int) -> Path:
    """The folder of a step."""
    return path / str(step)


def complete_steps(path: Path) -> list[int]:
    """The steps that were saved to the end, ascending."""
    found, seen = _folders(path), None
    while True:
        complete = sorted(step for step, folder in found.items() if (folder / INDEX).is_file())
        # A save that ends after the folders were listed removes those before it: there is always one, and none where nothing changes.
        if complete or found == seen:
            return complete
        found, seen = _folders(path), found


def _folders(path: Path) -> dict[int, Path]:
    """All folders with the name of a step, whole or not."""
    if not path.is_dir():
        return {}
    return {int(folder.name): folder for folder in path.iterdir() if _STEP.fullmatch(folder.name) and folder.is_dir()}


def retain(path: Path, last: int, most: int, busy: Container[int]) -> None:
    """Remove what interrupted saves left, and the steps saved longest ago while there are more than `most` (0: any number).

    last: the step just saved, which stays whatever the clock says. busy: steps that are being saved. Raises OSError.
    """
    found = _folders(path)
    ages = {step: _saved_ns(folder) for step, folder in found.items()}
    whole = sorted((step for step, age in ages.items() if age is not None), key=lambda step: (step == last, ages[step], step))
    unfinished = [step for step, age in ages.items() if age is None]
    gone = [step for step in (*(whole[:-most] if most else ()), *unfinished) if step not in busy]
    for step in gone:
        with suppress(BlockingIOError, FileNotFoundError):  # another program saves there, or has removed it
            _remove(found[step])


def _saved_ns(folder: Path) -> int | None:
    """The time of a save, on the file system's clock; None for what was not saved to the end."""
    try:
        return (folder / INDEX).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _remove(folder: Path) -> None:
    """A checkpoint's files, and the folder unless others put something into it. From the first moment on it is no step any more."""
    with locked(folder):
        (folder / INDEX).unlink(missing_ok=True)
        files.sync_folder(folder)
        folders.clean(folder, set())
        with suppress(OSError):
            folder.rmdir()

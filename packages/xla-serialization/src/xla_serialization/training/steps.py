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
    """The path of a step's folder."""
    return path / str(step)


def complete_steps(path: Path) -> list[int]:
    """List the steps whose checkpoints are complete, ascending."""
    step_folders, earlier = _folders(path), None
    while True:
        complete = sorted(step for step, folder in step_folders.items() if (folder / INDEX).is_file())
        # A save that ends after the listing may have removed the listed steps: list again until one is complete or nothing changes.
        if complete or step_folders == earlier:
            return complete
        step_folders, earlier = _folders(path), step_folders


def _folders(path: Path) -> dict[int, Path]:
    """List all folders with the name of a step, complete or not."""
    if not path.is_dir():
        return {}
    return {int(folder.name): folder for folder in path.iterdir() if _STEP.fullmatch(folder.name) and folder.is_dir()}


def retain(path: Path, last: int, most: int, busy: Container[int]) -> None:
    """Remove folders of interrupted saves, and the steps saved longest ago beyond `most` (0: keep all).

    last: the step just saved, which stays whatever the clock says. busy: steps that are being saved. Raises OSError.
    """
    step_folders = _folders(path)
    ages = {step: _saved_ns(folder) for step, folder in step_folders.items()}
    complete = sorted((step for step, age in ages.items() if age is not None), key=lambda step: (step == last, ages[step], step))
    unfinished = [step for step, age in ages.items() if age is None]
    removed = [step for step in (*(complete[:-most] if most else ()), *unfinished) if step not in busy]
    for step in removed:
        with suppress(BlockingIOError, FileNotFoundError):  # another program saves there, or has removed it
            _remove(step_folders[step])


def _saved_ns(folder: Path) -> int | None:
    """The time of a save, on the file system's clock; None for one that is not complete."""
    try:
        return (folder / INDEX).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _remove(folder: Path) -> None:
    """Remove a checkpoint's index first, so that it is no step any more, then its other files, and the folder if it is empty."""
    with locked(folder):
        (folder / INDEX).unlink(missing_ok=True)
        files.sync_folder(folder)
        folders.clean(folder, set())
        with suppress(OSError):
            folder.rmdir()

"""`torch_xla.utils.serialization`: a structure in one file, its XLA tensors in files of a folder beside it.

`path` is written by `torch.save`: the nesting, with a `TensorReference` in place of each XLA tensor. `path.tensors/tensor_<i>.pt` is
tensor number i. Files that others do not look for: `path.tensors/structure` has the checksum of `path`, so that a save that is interrupted
between moving the folder and the file leaves the earlier folder under another name, where `load` finds it; `path.tensors/checksums` has
that and those of the tensors' files.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
import xxhash

import torch_xla.core.xla_model as xm
from xla_serialization.checkpoint import loading
from xla_serialization.checkpoint.participants import is_writer, spans_processes
from xla_serialization.checkpoint.state import unwrapped
from xla_serialization.core import budget, files, job
from xla_serialization.core import tensors as tensors_abi
from xla_serialization.errors import CheckpointError, DamagedCheckpointError, UnsavableError
from xla_serialization.format.files import is_stale, locked, open_file, remove_leftover, rename_lock
from xla_serialization.format.folder import new_id
from xla_serialization.format.limits import LARGEST_TEXT, parsed
from xla_serialization.format.manifest import INDEX
from xla_serialization.torch_formats.torch_save import write_torch

_DIGEST, _CHECKSUMS = "structure", "checksums"
_HEXADECIMAL = re.compile("[0-9a-f]{16}")
_TRIES = 100
_UNREADABLE = (RuntimeError, EOFError, ValueError, TypeError, LookupError, AttributeError, pickle.UnpicklingError)
"""Errors that torch.load raises for files that torch.save did not write."""


@dataclass(frozen=True)
class _Folder:
    """An open folder of tensors. checksums: of their files, by number; None where whoever saved wrote none."""

    descriptor: int
    checksums: list[str] | None


class TensorReference:
    """Stands for tensor number `tid` in a structure file."""

    def __init__(self, tid: int) -> None:
        self.tid = tid


TensorReference.__module__ = "torch_xla.utils.serialization"  # as structure files call it


@budget(compiles=None, reads=None)
def save(data: Any, path: str | os.PathLike[str], master_only: bool = True, global_master: bool = False) -> None:
    """Write a nesting with its XLA tensors going to the CPU and to disk one at a time; one that appears twice is stored once.

    Writes `path` and the folder `path` + `.tensors`, in place of what was there. master_only: each host's master writes
    (global_master: the job's only); other replicas compute the tensors and write nothing. Raises OSError; what was there is then as it was.
    `xla_serialization.save` writes safetensors. Raises UnsavableError for tensors that are divided among processes.
    """
    tensors_abi.to_cpu(data, convert=False)
    if spans_processes():
        _refuse_divided(data)
    if is_writer(master_only, global_master):
        _write(data, Path(path))


def _refuse_divided(data: Any) -> None:
    """Raise UnsavableError for tensors that are divided among processes, in all processes, so that none waits for parts of the others."""

    def refuse(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        for tensor in tensors:
            if not tensors_abi.buffer_of(unwrapped(tensor)).is_fully_replicated:
                raise UnsavableError(
                    f"a tensor of shape {list(tensor.shape)} is divided among {job.topology().process_count} processes: save it with "
                    "xla_serialization.save, to which each writes its part, or with xm.save, which writes it whole"
                )
        return tensors

    xm.ToXlaTensorArena(refuse, _on_device).transform(data)


@budget(compiles=None, reads=None)
def load(path: str | os.PathLike[str]) -> Any:
    """Load what `save` of this module, or of `xla_serialization`, wrote: the same nesting, with CPU tensors. No code from the files is run.

    Raises FileNotFoundError, DamagedCheckpointError (RuntimeError) if files are missing, damaged, do not belong together, or hold more than
    builtin containers, scalars and tensors. What PyTorch/XLA or xla-serialization 0.1 saved has no checksums: there, other numbers are not
    noticed.
    """
    structure = Path(path)
    if (structure / INDEX).exists():
        return loading.load(structure)
    for _ in range(_TRIES):
        with open_file(structure) as file:
            digest = _digest_of(file)
            try:
                return _load(structure, file, digest)
            except DamagedCheckpointError:
                if _digest_now(structure) == digest:
                    raise  # else another save has come between
    raise CheckpointError(f"{structure}: is saved to faster than it can be read")


def _load(path: Path, file: BinaryIO, digest: str) -> Any:
    loaded: dict[int, torch.Tensor] = {}
    folder = _folder_of(path, digest)
    with ExitStack() as stack:
        if folder is not None:
            stack.callback(os.close, folder.descriptor)

        def convert(references: list[TensorReference]) -> list[torch.Tensor]:
            if folder is None:
                raise DamagedCheckpointError(f"{_with_ending(path, 'tensors')}: the folder with the tensors of {path.name} is missing")
            for reference in references:
                tid = getattr(reference, "tid", None)
                if type(tid) is not int:
                    raise DamagedCheckpointError(f"{path}: refers to a tensor by {tid!r}, not by its number")
                if tid not in loaded:
                    loaded[tid] = _load_tensor(path, folder, tid)
            return [loaded[reference.tid] for reference in references]

        structure = _unpickled(path, file)
        return xm.ToXlaTensorArena(convert, lambda value: isinstance(value, TensorReference)).transform(structure)


def _unpickled(path: Path, file: BinaryIO) -> Any:
    """Load a file of torch.save, without running code from it."""
    try:
        with torch.serialization.safe_globals([TensorReference]):
            return torch.load(file, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise DamagedCheckpointError(
            f"{path}: cut off, changed, or with more in it than builtin containers, scalars and tensors ({error})"
        ) from error


def _load_tensor(structure: Path, folder: _Folder, tid: int) -> torch.Tensor:
    path = _with_ending(structure, "tensors") / f"tensor_{tid}.pt"
    try:
        # Looked up in the open folder: a save may rename the folder meanwhile.
        file = open_file(path, folder.descriptor)
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{path}: this tensor of the checkpoint is missing") from None
    with file:
        if folder.checksums is not None and [_digest_of(file)] != folder.checksums[tid : tid + 1]:
            raise DamagedCheckpointError(f"{path}: is damaged, or of another save: it has another checksum")
        tensor = _unpickled(path, file)
    if not isinstance(tensor, torch.Tensor):
        raise DamagedCheckpointError(f"{path}: holds a {type(tensor).__name__}, not a tensor")
    return tensor


def _write(data: Any, path: Path) -> None:
    # Not `abi.files.atomic_write`: a folder and a file change places together, and a reader between the two renamings, or after a crash
    # there, finds the earlier folder by the checksum of its file.
    save_id = new_id()
    tensors = _with_ending(path, "tensors")
    new_tensors, new_structure = _with_ending(path, f"tensors.new-{save_id}"), _with_ending(path, f"new-{save_id}")
    parent = path.absolute().parent
    with ExitStack() as stack:
        try:
            with rename_lock(parent):
                # Made and locked while nobody cleans up: an unlocked folder looks like the leftover of a save that was killed.
                new_tensors.mkdir()
                stack.enter_context(locked(new_tensors))
            checksums: list[str] = []
            digest = _save(_with_references(data, new_tensors, checksums), new_structure)
            _write_text(new_tensors / _DIGEST, digest)
            _write_text(new_tensors / _CHECKSUMS, json.dumps({"structure": digest, "tensors": checksums}))
            files.sync_folder(new_tensors)
        except BaseException:
            new_structure.unlink(missing_ok=True)
            shutil.rmtree(new_tensors, ignore_errors=True)
            raise
        with rename_lock(parent):
            earlier = _with_ending(path, f"tensors.old-{save_id}")
            try:
                with suppress(FileNotFoundError):
                    tensors.rename(earlier)
                new_tensors.rename(tensors)
                # The structure last: until then the old one finds its tensors as `earlier`, by their checksum.
                new_structure.replace(path)
            except BaseException:
                if new_structure.exists():  # this save is not yet visible
                    _roll_back(tensors, earlier, new_tensors, new_structure)
                raise
            files.sync_folder(parent)
            _clean(path)


def _roll_back(tensors: Path, earlier: Path, new_tensors: Path, new_structure: Path) -> None:
    with suppress(OSError):  # where this fails, a reader finds the earlier tensors under their present name
        if not new_tensors.exists():
            tensors.rename(new_tensors)
        if earlier.exists():
            earlier.rename(tensors)
        new_structure.unlink()
        shutil.rmtree(new_tensors)


def _clean(path: Path) -> None:
    """Remove the leftovers of interrupted saves, but not files that another program is writing."""
    for leftover in _leftovers(path):
        folder = leftover if leftover.is_dir() else _with_ending(path, f"tensors{leftover.name.removeprefix(path.name)}")
        if ".tensors.old-" in leftover.name or not folder.exists() or is_stale(folder):
            remove_leftover(leftover)


def _write_text(path: Path, text: str) -> None:
    with files.name_errors(path):
        path.write_text(text, encoding="ascii")
    files.sync_file(path)


def _save(data: Any, path: Path) -> str:
    """Write a file of torch.save and flush it to disk; gives its checksum."""
    write_torch(data, path)
    files.sync_file(path)
    with open(path, "rb") as file:
        return _digest_of(file)


def _with_references(data: Any, folder: Path, checksums: list[str]) -> Any:
    """Write the tensors of a nesting, append the checksums of their files, and give the nesting with references instead of tensors."""
    numbers: dict[Hashable, int] = {}

    def convert(tensors: list[torch.Tensor]) -> list[TensorReference]:
        references = []
        for tensor in tensors:
            inner = unwrapped(tensor)
            key = tensors_abi.alias_key(inner)
            if key not in numbers:
                numbers[key] = len(numbers)
                checksums.append(_save(inner.detach().cpu(), folder / f"tensor_{numbers[key]}.pt"))
            references.append(TensorReference(numbers[key]))
        return references

    return xm.ToXlaTensorArena(convert, _on_device).transform(data)


def _on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "xla"


def _with_ending(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.name}.{ending}")


def _leftovers(path: Path) -> list[Path]:
    """List the leftovers of interrupted saves: earlier folders of tensors, and new files and folders of saves that did not end."""
    pattern = re.compile(re.escape(path.name) + r"\.(?:tensors\.old|tensors\.new|new)-[0-9a-f]{16}")
    return sorted((entry for entry in path.absolute().parent.iterdir() if pattern.fullmatch(entry.name)), reverse=True)


def _folder_of(path: Path, digest: str) -> _Folder | None:
    """Open the folder with the tensors of the structure that has this checksum; None if there is no folder at all.

    Raises DamagedCheckpointError if the folders that exist belong to other structures.
    """
    foreign: _Folder | None = None
    others = []
    for candidate in _candidates(path):
        try:
            fd = os.open(candidate, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            recorded, checksums = _recorded(candidate, fd)
        except BaseException:
            os.close(fd)
            if foreign is not None:
                os.close(foreign.descriptor)
            raise
        if recorded is None and foreign is None:
            foreign = _Folder(fd, None)  # written by another program, or just being removed
            continue
        if recorded == digest:
            if foreign is not None:
                os.close(foreign.descriptor)
            return _Folder(fd, checksums)
        os.close(fd)
        others.append(candidate)
    if foreign is None and others:
        raise DamagedCheckpointError(f"{path}: is damaged, or the folder with its tensors, {others[0]}, belongs to another save")
    return foreign


def _candidates(path: Path) -> Iterator[Path]:
    """Yield the folders in which the tensors may be: the usual one, then leftovers, since a save may just have renamed the usual one."""
    yield _with_ending(path, "tensors")
    yield from _leftovers(path)


def _recorded(path: Path, folder: int) -> tuple[str | None, list[str] | None]:
    """Read from an open folder the checksum of its structure, and the checksums of its tensors' files, each None if not recorded.

    Raises DamagedCheckpointError if the two records contradict each other.
    """
    digest, text = (_text_in(path / name, folder) for name in (_DIGEST, _CHECKSUMS))
    if text is None:  # of an earlier version, or of another program
        return digest, None
    try:
        document = parsed(text.encode())
        structure, tensors = document["structure"], document["tensors"]
        well_formed = len(document) == 2 and all(_HEXADECIMAL.fullmatch(checksum) for checksum in (structure, *tensors))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path / _CHECKSUMS}: is damaged ({error})") from error
    if not well_formed or digest not in (structure, None):
        raise DamagedCheckpointError(f"{path / _CHECKSUMS}: is damaged, or {path / _DIGEST} is: they name different checksums")
    return structure, tensors


def _text_in(path: Path, folder: int) -> str | None:
    """Read a text file in an open folder; None if there is none. Raises DamagedCheckpointError for one that is larger than saves write."""
    try:
        file = open_file(path, folder)
    except FileNotFoundError:
        return None
    with file:
        data = file.read(LARGEST_TEXT + 1)
    if len(data) > LARGEST_TEXT:
        raise DamagedCheckpointError(f"{path}: has more than {LARGEST_TEXT} bytes: no save has written it")
    return data.decode("ascii", "replace")


def _digest_of(file: BinaryIO) -> str:
    """Compute the checksum of a file, and go back to its start."""
    digest = xxhash.xxh3_64()
    while data := file.read(1 << 20):
        digest.update(data)
    file.seek(0)
    return digest.hexdigest()


def _digest_now(path: Path) -> str | None:
    try:
        with open_file(path) as file:
            return _digest_of(file)
    except FileNotFoundError:
        return None

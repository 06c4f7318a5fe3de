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
"""What torch.load raises for files that torch.save did not write."""


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
    """Raise UnsavableError, in all processes, rather than wait in one of them for parts that others do not send."""

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
    place = Path(path)
    if (place / INDEX).exists():
        return loading.load(place)
    for _ in range(_TRIES):
        with open_file(place) as file:
            digest = _digest_of(file)
            try:
                return _load(place, file, digest)
            except DamagedCheckpointError:
                if _digest_now(place) == digest:
                    raise  # else another save has come between
    raise CheckpointError(f"{place}: is saved to faster than it can be read")


def _load(place: Path, file: BinaryIO, digest: str) -> Any:
    known: dict[int, torch.Tensor] = {}
    folder = _folder_of(place, digest)
    with ExitStack() as stack:
        if folder is not None:
            stack.callback(os.close, folder.descriptor)

        def convert(references: list[TensorReference]) -> list[torch.Tensor]:
            if folder is None:
                raise DamagedCheckpointError(f"{_with_ending(place, 'tensors')}: the folder with the tensors of {place.name} is missing")
            for reference in references:
                number = getattr(reference, "tid", None)
                if type(number) is not int:
                    raise DamagedCheckpointError(f"{place}: refers to a tensor by {number!r}, not by its number")
                if number not in known:
                    known[number] = _tensor(place, folder, number)
            return [known[reference.tid] for reference in references]

        structure = _unpickled(place, file)
        return xm.ToXlaTensorArena(convert, lambda value: isinstance(value, TensorReference)).transform(structure)


def _unpickled(path: Path, file: BinaryIO) -> Any:
    """Load a file of torch.save."""
    try:
        with torch.serialization.safe_globals([TensorReference]):
            return torch.load(file, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise DamagedCheckpointError(
            f"{path}: cut off, changed, or with more in it than builtin containers, scalars and tensors ({error})"
        ) from error


def _tensor(place: Path, folder: _Folder, number: int) -> torch.Tensor:
    path = _with_ending(place, "tensors") / f"tensor_{number}.pt"
    try:
        # Below the open folder: a save may give it another name meanwhile.
        file = open_file(path, folder.descriptor)
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{path}: this tensor of the checkpoint is missing") from None
    with file:
        if folder.checksums is not None and [_digest_of(file)] != folder.checksums[number : number + 1]:
            raise DamagedCheckpointError(f"{path}: is damaged, or of another save: it has another checksum")
        found = _unpickled(path, file)
    if not isinstance(found, torch.Tensor):
        raise DamagedCheckpointError(f"{path}: holds a {type(found).__name__}, not a tensor")
    return found


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
                # Made and locked while nobody cleans up: between the two it looks like the leftover of a save that was killed.
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
                if new_structure.exists():  # it has not come to its moment
                    _roll_back(tensors, earlier, new_tensors, new_structure)
                raise
            files.sync_folder(parent)
            _clean(path)


def _roll_back(tensors: Path, earlier: Path, new_tensors: Path, new_structure: Path) -> None:
    with suppress(OSError):  # a reader finds what belongs to it under these names, too
        if not new_tensors.exists():
            tensors.rename(new_tensors)
        if earlier.exists():
            earlier.rename(tensors)
        new_structure.unlink()
        shutil.rmtree(new_tensors)


def _clean(path: Path) -> None:
    """Remove what interrupted saves left, and not what another program is writing."""
    for left in _leftovers(path):
        folder = left if left.is_dir() else _with_ending(path, f"tensors{left.name.removeprefix(path.name)}")
        if ".tensors.old-" in left.name or not folder.exists() or is_stale(folder):
            remove_leftover(left)


def _write_text(path: Path, text: str) -> None:
    with files.name_errors(path):
        path.write_text(text, encoding="ascii")
    files.sync_file(path)


def _save(data: Any, path: Path) -> str:
    """Write a file of torch.save, to last; gives its checksum."""
    write_torch(data, path)
    files.sync_file(path)
    with open(path, "rb") as file:
        return _digest_of(file)


def _with_references(data: Any, folder: Path, checksums: list[str]) -> Any:
    """The nesting with references; writes the tensors, and adds the checksums of their files."""
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
    """The leftovers of interrupted saves: folders of tensors that were there before, and those of saves that did not end."""
    left = re.compile(re.escape(path.name) + r"\.(?:tensors\.old|tensors\.new|new)-[0-9a-f]{16}")
    return sorted((found for found in path.absolute().parent.iterdir() if left.fullmatch(found.name)), reverse=True)


def _folder_of(path: Path, wanted: str) -> _Folder | None:
    """The folder with the tensors of a structure, open; None if there is none at all.

    Raises DamagedCheckpointError if what is there does not belong to it.
    """
    foreign: _Folder | None = None
    others = []
    for place in _candidates(path):
        try:
            opened = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            recorded, checksums = _recorded(place, opened)
        except BaseException:
            os.close(opened)
            if foreign is not None:
                os.close(foreign.descriptor)
            raise
        if recorded is None and foreign is None:
            foreign = _Folder(opened, None)  # written by another program, or on its way out
            continue
        if recorded == wanted:
            if foreign is not None:
                os.close(foreign.descriptor)
            return _Folder(opened, checksums)
        os.close(opened)
        others.append(place)
    if foreign is None and others:
        raise DamagedCheckpointError(f"{path}: is damaged, or the folder with its tensors, {others[0]}, belongs to another save")
    return foreign


def _candidates(path: Path) -> Iterator[Path]:
    """The folders in which the tensors may be; looks for others only after the usual place, from where a save may just have moved them."""
    yield _with_ending(path, "tensors")
    yield from _leftovers(path)


def _recorded(path: Path, folder: int) -> tuple[str | None, list[str] | None]:
    """The checksum of the structure to which an open folder belongs, and those of the files of its tensors, if it says so.

    Raises DamagedCheckpointError if it contradicts itself.
    """
    digest, text = (_text_in(path / name, folder) for name in (_DIGEST, _CHECKSUMS))
    if text is None:  # of an earlier version, or of another program
        return digest, None
    try:
        found = parsed(text.encode())
        structure, tensors = found["structure"], found["tensors"]
        whole = len(found) == 2 and all(_HEXADECIMAL.fullmatch(checksum) for checksum in (structure, *tensors))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path / _CHECKSUMS}: is damaged ({error})") from error
    if not whole or digest not in (structure, None):
        raise DamagedCheckpointError(f"{path / _CHECKSUMS}: is damaged, or {path / _DIGEST} is: they name different checksums")
    return structure, tensors


def _text_in(path: Path, folder: int) -> str | None:
    """The text of a file in an open folder, None if it is not there. Raises DamagedCheckpointError for a larger one than saves write."""
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
    """The checksum of a file, which is then at its start again."""
    found = xxhash.xxh3_64()
    while data := file.read(1 << 20):
        found.update(data)
    file.seek(0)
    return found.hexdigest()


def _digest_now(path: Path) -> str | None:
    try:
        with open_file(path) as file:
            return _digest_of(file)
    except FileNotFoundError:
        return None

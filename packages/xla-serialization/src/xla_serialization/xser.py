"""`torch_xla.utils.serialization` (api.md Z02, Z03): a structure in one file, its XLA tensors in files of a folder beside it.

`path` is written by `torch.save`: the nesting, with a `TensorReference` in place of each XLA tensor. `path.tensors/tensor_<i>.pt` is
tensor number i. `path.tensors/structure` has the checksum of `path`: a save that is interrupted between moving the folder and the file
leaves the earlier folder under another name, where `load` finds it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import torch

import torch_xla.core.xla_model as xm
from xla_serialization import loading
from xla_serialization.core import abi
from xla_serialization.errors import DamagedCheckpointError
from xla_serialization.format.folder import new_id, sync_folder
from xla_serialization.format.manifest import INDEX, checksum
from xla_serialization.masters import writes
from xla_serialization.replacing import sync_file
from xla_serialization.saving import unwrapped

_DIGEST = "structure"


class TensorReference:
    """Stands for tensor number `tid` in a structure file."""

    def __init__(self, tid: int) -> None:
        self.tid = tid


TensorReference.__module__ = "torch_xla.utils.serialization"  # as structure files call it


def save(data: Any, path: str | os.PathLike[str], master_only: bool = True, global_master: bool = False) -> None:
    """Z02: write a nesting with its XLA tensors going to the CPU and to disk one at a time; one that appears twice is stored once.

    Writes `path` and the folder `path` + `.tensors`, in place of what was there. master_only: each host's master writes
    (global_master: the job's only); other replicas compute the tensors and write nothing. Raises OSError; what was there is then as it was.
    `xla_serialization.save` writes safetensors.
    """
    xm._maybe_convert_to_cpu(data, convert=False)
    if writes(master_only, global_master):
        _write(data, Path(path))


def load(path: str | os.PathLike[str]) -> Any:
    """Z03: what `save` of this module, or of `xla_serialization`, wrote: the same nesting, with CPU tensors. No code from the files is run.

    Raises FileNotFoundError, DamagedCheckpointError (RuntimeError) if files are missing or do not belong together,
    pickle.UnpicklingError for a structure with more than builtin containers, scalars and tensors.
    """
    place = Path(path)
    if (place / INDEX).exists():
        return loading.load(place)
    with torch.serialization.safe_globals([TensorReference]):
        structure = torch.load(place, map_location="cpu", weights_only=True)
    folder: Path | None = None
    known: dict[int, torch.Tensor] = {}

    def convert(references: list[TensorReference]) -> list[torch.Tensor]:
        nonlocal folder
        folder = folder or _folder_of(place)
        for reference in references:
            if reference.tid not in known:
                known[reference.tid] = _tensor(folder, reference.tid)
        return [known[reference.tid] for reference in references]

    return xm.ToXlaTensorArena(convert, lambda value: isinstance(value, TensorReference)).transform(structure)


def _tensor(folder: Path, number: int) -> torch.Tensor:
    path = folder / f"tensor_{int(number)}.pt"
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{path}: this tensor of the checkpoint is missing") from None
    except (RuntimeError, EOFError, ValueError) as error:
        raise DamagedCheckpointError(f"{path}: the file of this tensor was cut off or changed ({error})") from error
    if not isinstance(found, torch.Tensor):
        raise DamagedCheckpointError(f"{path}: holds a {type(found).__name__}, not a tensor")
    return found


def _write(data: Any, path: Path) -> None:
    save_id = new_id()
    tensors = _beside(path, "tensors")
    new_tensors, new_structure = _beside(path, f"tensors.new-{save_id}"), _beside(path, f"new-{save_id}")
    try:
        new_tensors.mkdir()
        torch.save(_referring(data, new_tensors), new_structure)
        sync_file(new_structure)
        (new_tensors / _DIGEST).write_text(checksum(new_structure.read_bytes()), encoding="ascii")
        sync_file(new_tensors / _DIGEST)
        sync_folder(new_tensors)
    except BaseException:
        new_structure.unlink(missing_ok=True)
        shutil.rmtree(new_tensors, ignore_errors=True)
        raise
    with contextlib.suppress(FileNotFoundError):
        tensors.rename(_beside(path, f"tensors.old-{save_id}"))
    new_tensors.rename(tensors)
    new_structure.replace(path)
    sync_folder(path.absolute().parent)
    for left in _others(path):
        shutil.rmtree(left)


def _referring(data: Any, folder: Path) -> Any:
    """The nesting with references; writes the tensors."""
    numbers: dict[Hashable, int] = {}

    def convert(tensors: list[torch.Tensor]) -> list[TensorReference]:
        references = []
        for tensor in tensors:
            inner = unwrapped(tensor)
            key = abi.shown_key(inner)
            if key not in numbers:
                numbers[key] = len(numbers)
                target = folder / f"tensor_{numbers[key]}.pt"
                torch.save(inner.detach().cpu(), target)
                sync_file(target)
            references.append(TensorReference(numbers[key]))
        return references

    def on_device(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "xla"

    return xm.ToXlaTensorArena(convert, on_device).transform(data)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.name}.{ending}")


def _others(path: Path) -> list[Path]:
    """Folders of tensors that an interrupted save left."""
    beside = sorted(path.absolute().parent.iterdir())
    return [found for kind in ("old", "new") for found in beside if found.name.startswith(f"{path.name}.tensors.{kind}-")]


def _folder_of(path: Path) -> Path:
    """The folder with the tensors of a structure. Raises DamagedCheckpointError if there is none that belongs to it."""
    wanted = checksum(path.read_bytes())
    usual = _beside(path, "tensors")
    candidates = [folder for folder in (usual, *_others(path)) if folder.is_dir()]
    told = {folder: _digest(folder) for folder in candidates}
    for folder in candidates:
        if told[folder] == wanted:
            return folder
    for folder in candidates:
        if told[folder] is None:  # written by another program
            return folder
    what = "belongs to another save" if usual.exists() else "is missing"
    raise DamagedCheckpointError(f"{usual}: the folder with the tensors of {path.name} {what}")


def _digest(folder: Path) -> str | None:
    try:
        return (folder / _DIGEST).read_text(encoding="ascii")
    except FileNotFoundError:
        return None

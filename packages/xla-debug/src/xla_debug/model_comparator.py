"""Compare two runs of a model: save tensors by name and step, one file each, and tell where the tensors of two folders differ.

torch.save writes the files. They are ZIP archives, and their comment has the file's name and a checksum of all bytes before the comment.
torch.load ignores the comment.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import pickle
import re
import sys
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import quote, unquote

import click
import torch

from xla_debug.core import budget, files, job
from xla_debug.regular_files import read_bytes
from xla_debug.settings import MODELCMP_SAVEDIR

_UNREADABLE = (EOFError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, pickle.UnpicklingError)
"""Errors that torch.load raises for files that torch.save did not write."""
_RTOL, _ATOL, _MAX_DIFFS = 1e-5, 1e-8, 25
_FILE = re.compile(r"(?P<name>.+)\.(?P<step>\d+)\.(?P<ordinal>\d+)\.pt")
_NO_COMMENT = b"\0\0"
"""The last bytes of a ZIP archive without a comment: its length."""
_MARK = b"xla-debug sha256 "
_COMMENT = re.compile(_MARK + rb"([0-9a-f]{64}) ([ -~]+)")
_LONGEST_COMMENT = 500


class _Saving:
    """This process's folder, and how often each replica has saved each name. Not per thread: autograd calls hooks in its own threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.folder: Path | None = None
        self.saved: Counter[tuple[int, str]] = Counter()


_saving = _Saving()


@budget()
def configure(save_dir: str | os.PathLike[str] | None) -> None:
    """Save tensors in `save_dir` from now on; None: in the folder that MODELCMP_SAVEDIR names. Steps count from 0 again."""
    with _saving.lock:
        _saving.folder = None if save_dir is None else Path(save_dir)
        _saving.saved.clear()


@budget(compiles=None, reads=None)
def save(name: str, tensor: torch.Tensor, step: int | None = None) -> None:
    """Save a tensor as `name` at `step`, so that `torch.load(file, weights_only=True)` gives it on the CPU. Each replica saves its own.

    step: None for the number of tensors that were saved as `name` before. Does nothing where no folder is set.
    Raises ValueError for an empty name or a negative step, OSError if the file cannot be written.
    """
    folder = _saving.folder or MODELCMP_SAVEDIR.get()
    if folder is None:
        return
    if not name or (step is not None and step < 0):
        raise ValueError(f"a tensor is saved by a name and a step of at least 0, got {name!r} and {step}")
    ordinal = job.ordinal()
    with _saving.lock:
        step_number = _saving.saved[ordinal, name] if step is None else step
        _saving.saved[ordinal, name] += 1
    Path(folder).mkdir(parents=True, exist_ok=True)
    target = Path(folder) / f"{quote(name, safe='')}.{step_number}.{ordinal}.pt"
    # A copy, since the file of a view would contain the whole storage.
    files.atomic_write_bytes(target, _with_checksum(tensor.detach().to("cpu", copy=True), target.name))


def _with_checksum(tensor: torch.Tensor, name: str) -> bytes:
    """Make the bytes of a tensor's file, with the checksum in its comment."""
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    data = buffer.getvalue()
    if not data.endswith(_NO_COMMENT):
        raise RuntimeError(f"{name} is not written: torch.save made no ZIP archive without a comment of it")
    comment = b"%b%b %b" % (_MARK, hashlib.sha256(data).hexdigest().encode(), name.encode())
    return data[: -len(_NO_COMMENT)] + _length_of(comment) + comment


def _length_of(comment: bytes) -> bytes:
    return len(comment).to_bytes(2, "little")


@budget(compiles=None, reads=None)
def compare_tensors(
    tensor1: torch.Tensor, tensor2: torch.Tensor, rtol: float = _RTOL, atol: float = _ATOL, max_diffs: int = _MAX_DIFFS
) -> str:
    """List the differences of two tensors in lines; empty if shapes and dtypes are equal, and |a - b| <= atol + rtol * |b| everywhere.

    NaN equals NaN. max_diffs: elements to show, at most.
    """
    lines = []
    if tensor1.dtype != tensor2.dtype:
        lines.append(f"dtypes {tensor1.dtype} and {tensor2.dtype}")
    if tensor1.shape != tensor2.shape:
        lines.append(f"shapes {list(tensor1.shape)} and {list(tensor2.shape)}")
    else:
        lines += _differing(_wide(tensor1), _wide(tensor2), rtol, atol, max_diffs)
    return "".join(f"{line}\n" for line in lines)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the CPU in the widest dtype of its kind."""
    dtype = torch.complex128 if tensor.is_complex() else torch.float64 if tensor.is_floating_point() else torch.int64
    return tensor.detach().cpu().to(dtype)


def _differing(first: torch.Tensor, second: torch.Tensor, rtol: float, atol: float, max_diffs: int) -> list[str]:
    dtype = torch.promote_types(first.dtype, second.dtype)
    first, second = first.to(dtype), second.to(dtype)
    unlike = ~torch.isclose(first, second, rtol=rtol, atol=atol, equal_nan=True)
    count = int(unlike.sum())
    if not count:
        return []
    distances = (first - second)[unlike].abs().double().nan_to_num(nan=math.inf, posinf=math.inf)
    lines = [f"{count} of {unlike.numel()} elements differ, by up to {distances.max().item():g}"]
    lines += [
        f"  {index}: {first[tuple(index)].item()} and {second[tuple(index)].item()}" for index in unlike.nonzero()[:max_diffs].tolist()
    ]
    return lines + (["  ..."] if count > max_diffs else [])


@budget(compiles=None, reads=None)
def tensor_file_compare(
    path1: str | os.PathLike[str], path2: str | os.PathLike[str], rtol: float = _RTOL, atol: float = _ATOL, max_diffs: int = _MAX_DIFFS
) -> str:
    """`compare_tensors` of two files that `save` wrote.

    Raises OSError for a file that cannot be read, a pipe or a device, ValueError for one that is damaged, or without a tensor. Files
    without a checksum, of other programs, are not checked for other numbers.
    """
    return compare_tensors(_load(path1), _load(path2), rtol, atol, max_diffs)


def _load(path: str | os.PathLike[str]) -> torch.Tensor:
    data = read_bytes(path)
    _check(data, Path(path))
    try:
        tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise ValueError(f"{os.fspath(path)} holds no tensor that torch.load can read: {error}") from error
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{os.fspath(path)} holds a {type(tensor).__name__}, not a tensor")
    return tensor


def _check(data: bytes, path: Path) -> None:
    """Raise ValueError if a file's checksum or name is not the one in its comment. Files of other programs have no such comment."""
    start = data.rfind(_MARK, max(0, len(data) - _LONGEST_COMMENT))
    if start < len(_NO_COMMENT):
        return
    before, length, comment = data[: start - len(_NO_COMMENT)], data[start - len(_NO_COMMENT) : start], data[start:]
    match = _COMMENT.fullmatch(comment)
    if match is None or length != _length_of(comment) or hashlib.sha256(before + _NO_COMMENT).hexdigest().encode() != match[1]:
        raise ValueError(f"{path} is damaged: it has another checksum than when it was saved; save it again")
    if match[2].decode() != path.name:
        raise ValueError(f"{path} was saved as {match[2].decode()}: give it that name again")


@budget(compiles=None, reads=None)
def compare(
    dir1: str | os.PathLike[str], dir2: str | os.PathLike[str], rtol: float = _RTOL, atol: float = _ATOL, max_diffs: int = _MAX_DIFFS
) -> str:
    """Compare the tensors saved in two folders, by step, name and replica; empty if both folders have equal tensors.

    max_diffs: elements to show of each tensor, at most. Raises ValueError for a folder that holds no saved tensors.
    """
    first, second = _saved_in(Path(dir1)), _saved_in(Path(dir2))
    text = ""
    for key in sorted({*first, *second}):
        step, name, ordinal = key
        if key not in first or key not in second:
            difference = f"only in {dir1 if key in first else dir2}\n"
        else:
            difference = tensor_file_compare(first[key], second[key], rtol, atol, max_diffs)
        if difference:
            text += f"{name}, step {step}, replica {ordinal}:\n" + "".join(f"  {line}\n" for line in difference.splitlines())
    return text


def _saved_in(folder: Path) -> dict[tuple[int, str, int], Path]:
    """Find the files of a folder by step, name and replica."""
    matches = ((_FILE.fullmatch(path.name), path) for path in folder.glob("*.pt"))
    files_by_key = {(int(match["step"]), unquote(match["name"]), int(match["ordinal"])): path for match, path in matches if match}
    if not files_by_key:
        raise ValueError(f"{folder} holds no tensors that model_comparator.save wrote")
    return files_by_key


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dir1", type=click.Path(exists=True, file_okay=False))
@click.argument("dir2", type=click.Path(exists=True, file_okay=False))
@click.option("--rtol", default=_RTOL, show_default=True, help="Relative tolerance.")
@click.option("--atol", default=_ATOL, show_default=True, help="Absolute tolerance.")
@click.option("--max-diffs", default=_MAX_DIFFS, show_default=True, type=click.IntRange(min=0), help="Elements to show of a tensor.")
def main(dir1: str, dir2: str, rtol: float, atol: float, max_diffs: int) -> None:
    """Compare the tensors saved in two folders: exit code 0 if they are alike, 1 if not, 2 if they cannot be compared."""
    try:
        text = compare(dir1, dir2, rtol, atol, max_diffs)
    except (OSError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    print(text, end="")
    sys.exit(1 if text else 0)

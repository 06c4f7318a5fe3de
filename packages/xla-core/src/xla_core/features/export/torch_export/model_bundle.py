"""Exported functions with their weights, and their folder.

Folder: `functions/<method>.meta` (JSON), `.bytecode`, `.mlir`; `data/<name>` and `constants/<i>` (NumPy files); `stablehlo.index.json`,
which names them all with their checksums.
"""

from __future__ import annotations

import io
import math
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from xla_core.base.dtypes import natural_dtype
from xla_core.base.errors import ExportFolderError
from xla_core.features.export.callbacks import check_code
from xla_core.features.export.inside import check_file_name
from xla_core.features.export.torch_export.folder_index import LARGEST_TEXT
from xla_core.features.export.torch_export.folder_reader import ExportFiles, read_folder
from xla_core.features.export.torch_export.folder_writer import Write, write_folder
from xla_core.features.export.torch_export.meta import InputLocation, StableHLOFunctionMeta, VariableSignature, VariableType

StateArray = np.ndarray[Any, Any] | jax.Array
_LARGEST_HEADER = 1 << 16
"""Largest header of a NumPy file, which has its dtype and shape."""
_NUMBERS = "biufcV"
"""Kinds of NumPy dtypes. V is for dtypes that NumPy does not know, such as bfloat16."""
_UNREADABLE = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError)
"""Exceptions that NumPy raises for invalid headers."""


@dataclass(frozen=True, slots=True)
class StableHLOFunc:
    """An exported function. text: the module as text for people, or None."""

    meta: StableHLOFunctionMeta
    bytecode: bytes
    text: str | None = None


@dataclass(slots=True)
class StableHLOModelBundle:
    """Functions over one state dict. A call writes arrays of the device there, which NumPy can read."""

    state_dict: dict[str, StateArray]
    additional_constants: list[np.ndarray[Any, Any]]
    stablehlo_funcs: list[StableHLOFunc]


def save_bundle(bundle: StableHLOModelBundle, folder: Path, include_weights: bool) -> None:
    """Write a bundle to a folder, which is made if needed. Replaces an export there atomically.

    Raises ValueError for a bundle that could not be read again (invalid file names, two functions of one name); BlockingIOError if another
    program is saving there, OSError.
    """
    names = [function.meta.name for function in bundle.stablehlo_funcs]
    if len(set(names)) < len(names):
        raise ValueError(f"there are two functions of one name, of {names}: give each its own")
    for function in bundle.stablehlo_funcs:
        function.meta.check()
        if len(function.meta.to_json().encode()) > LARGEST_TEXT:
            raise ValueError(f"the meta of {function.meta.name} has more than {LARGEST_TEXT} bytes: give it fewer arguments")
    state = bundle.state_dict if include_weights else {}
    for name in state:
        try:
            check_file_name(name)
        except ValueError as error:
            raise ValueError(f"a weight cannot be saved: {error}. Rename the module or the parameter") from None
    write_folder(folder, _contents(bundle, state))


def _contents(bundle: StableHLOModelBundle, state: dict[str, StateArray]) -> Iterator[tuple[str, Write]]:
    for name, array in state.items():
        yield f"data/{name}", partial(_write_array, array=array)
    for index, array in enumerate(bundle.additional_constants):
        yield f"constants/{index}", partial(_write_array, array=array)
    for function in bundle.stablehlo_funcs:
        base = f"functions/{function.meta.name}"
        yield f"{base}.bytecode", partial(_write_bytes, content=function.bytecode)
        if function.text is not None:
            yield f"{base}.mlir", partial(_write_bytes, content=function.text.encode())
        yield f"{base}.meta", partial(_write_bytes, content=function.meta.to_json().encode())


def _write_bytes(file: BinaryIO, content: bytes) -> None:
    file.write(content)


def _write_array(file: BinaryIO, array: StateArray) -> None:
    np.save(file, np.asarray(array), allow_pickle=False)


def load_bundle(folder: Path) -> StableHLOModelBundle:
    """Read the export in a folder, and check it if it has an index.

    Raises ExportFolderError, with the file's name, if it has no functions, is damaged, of a newer version, or has invalid content;
    FileNotFoundError, OSError.
    """
    return read_folder(folder, _bundle_of)


def _bundle_of(files: ExportFiles) -> StableHLOModelBundle:
    methods = [name.removeprefix("functions/").removesuffix(".meta") for name in files.names if _is_meta(name)]
    if not methods:
        raise ExportFolderError(f"{files.folder} holds no exported functions (functions/<method>.meta): save a program there")
    functions = [_function(files, method) for method in methods]
    signatures: dict[InputLocation, VariableSignature] = {}
    for function in functions:
        meta = function.meta
        signatures |= {location: signature for location, signature in zip(meta.input_locations, meta.input_signature, strict=True)}
        signatures |= dict(meta.unused_inputs)
    count = sum(name.startswith("constants/") for name in files.names)
    missing = [where.position for where in signatures if where.type_ is VariableType.CONSTANT and where.position >= count]
    if missing:
        raise files.error(f"constants/{missing[0]}", "is missing")
    state: dict[str, StateArray] = {
        name: _array(files, f"data/{name}", signatures.get(InputLocation.parameter(name)))
        for name in (path.removeprefix("data/") for path in files.names if path.startswith("data/"))
    }
    constants = [_array(files, f"constants/{index}", signatures.get(InputLocation.constant(index))) for index in range(count)]
    return StableHLOModelBundle(state, constants, functions)


def _is_meta(name: str) -> bool:
    return name.startswith("functions/") and name.endswith(".meta")


def _function(files: ExportFiles, method: str) -> StableHLOFunc:
    base = f"functions/{method}"
    try:
        meta = StableHLOFunctionMeta.from_json(files.read(f"{base}.meta", LARGEST_TEXT).decode())
        if meta.name != method:
            raise ValueError(f"its name is {meta.name[:80]!r}, and that of its file {method!r}")
    except ExportFolderError:
        raise
    except ValueError as error:
        raise files.error(f"{base}.meta", f"cannot be read: {error}") from error
    code = bytes(files.read(f"{base}.bytecode"))
    try:
        check_code(code)
        text = files.read(f"{base}.mlir").decode() if f"{base}.mlir" in files.names else None
    except UnicodeDecodeError as error:
        raise files.error(f"{base}.mlir", f"is no text: {error}") from error
    except ExportFolderError:
        raise
    except ValueError as error:
        raise files.error(f"{base}.bytecode", f"cannot be read: {error}") from error
    return StableHLOFunc(meta, code, text)


def _array(files: ExportFiles, name: str, signature: VariableSignature | None) -> np.ndarray[Any, Any]:
    """Read a weight or constant. signature: that functions have for it, or None."""
    largest = None
    if signature is not None:
        largest = _LARGEST_HEADER + math.prod(map(abs, signature.shape)) * max(8, natural_dtype(signature.torch_dtype).itemsize)
    content = files.read(name, largest)
    try:
        array = _parsed(content)
        if signature is not None and list(array.shape) != signature.shape:
            raise ValueError(f"its shape is {list(array.shape)}, and functions take {signature.shape}")
        if signature is None or array.dtype.kind != "V":
            return array
        natural = natural_dtype(signature.torch_dtype)
        if array.dtype.itemsize != natural.itemsize:
            raise ValueError(f"its elements have {array.dtype.itemsize} bytes, and functions take {signature.dtype}")
        return array.view(natural)
    except _UNREADABLE as error:
        raise files.error(name, f"cannot be read: {str(error)[:200]}") from error


def _parsed(content: bytearray) -> np.ndarray[Any, Any]:
    """Parse a NumPy file to an array over the same memory. Raises one of `_UNREADABLE` for other content than an array of numbers."""
    with io.BytesIO(content[:_LARGEST_HEADER]) as head:
        version = np.lib.format.read_magic(head)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"a NumPy file of version {version}, which holds no array of numbers")
        shape, by_column, dtype = readers[version](head)
        start = head.tell()
    if dtype.kind not in _NUMBERS or dtype.fields is not None or dtype.subdtype is not None or not dtype.itemsize:
        raise ValueError(f"an array of {str(dtype)[:80]}, which are no numbers")
    if any(type(size) is not int or size < 0 for size in shape) or len(content) - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(content) - start} bytes of data for shape {str(list(shape))[:80]} of {dtype}")
    return np.ndarray(shape, dtype, content, start, order="F" if by_column else "C")

"""The compiled programs of an exported step, in a file beside it: a description as JSON, and each program as the compiler's own bytes.

Reading the file runs nothing. An executable reaches the compiler's client only if the file is this user's, its checksum is right, it was
compiled from this very program, and the process has what it was compiled for. Whatever does not fit is not used, with one warning.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import jax

from xla_core.base.errors import LoweringError, StepFileError
from xla_core.base.owned_files import open_owned
from xla_core.base.private_jax import compile_module, compiled_bytes, load_executable
from xla_core.engine.compile.build import count_compilation
from xla_core.engine.compile.environment import differences, environment
from xla_core.engine.compile.options import compiler_options
from xla_core.engine.placement.target import Target
from xla_core.features.export import typed_json
from xla_core.features.export.stablehlo import artifact
from xla_core.features.export.steps import step_file
from xla_core.features.export.steps.step_file import Format, Part, Reader
from xla_core.features.export.uniform import runnable

Run = Callable[[list[jax.Array]], list[jax.Array]]

VERSION = 1
"""Version of the format. Readers use no other."""


@dataclass(frozen=True, slots=True)
class StoredExecutable:
    """The executable of a program. code: SHA-256 of the StableHLO artifact that it was compiled from."""

    code: str
    value: Part


@dataclass(frozen=True, slots=True)
class Executables:
    """Describes a file. compiled_for: name of the target; environment: compiler and devices, as `engine/compile/environment.py` has it."""

    format_version: int
    compiled_for: str
    environment: dict[str, str]
    programs: tuple[StoredExecutable, ...]


def _from_json(data: Any) -> Executables:
    version = data.get("format_version") if isinstance(data, dict) else None
    if version != VERSION:
        raise StepFileError(f"it has version {version!r} of the format, and this xla-core writes version {VERSION}")
    described: Executables = typed_json.read(Executables, data, "description")
    return described


EXECUTABLES = Format(b"XLA_EXEC", "file of executables", _from_json, lambda described: [program.value for program in described.programs])
"""The file beside an exported step."""


def path_beside(path: str | os.PathLike[str]) -> str:
    """Where the executables of an exported step are."""
    return f"{os.fspath(path)}.executable"


def compile_code(code: bytes, device: jax.Device) -> Run:
    """Compile a program's StableHLO for a device of this process. Raises RuntimeError, ValueError or TypeError where that fails."""
    start = time.perf_counter_ns()
    run = compile_module(runnable(code), device, _options(code, device))
    count_compilation(time.perf_counter_ns() - start)
    return run


def compile_for(target: Target, code: bytes, name: str) -> bytes:
    """The executable of a program's StableHLO for one device of a target. name: of the step. Raises LoweringError where that fails."""
    start, device = time.perf_counter_ns(), target.devices[0]
    module = runnable(code)
    try:
        compiled = compiled_bytes(artifact(module) if isinstance(module, str) else module, device, _options(code, device))
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise LoweringError(f"the step {name} could not be compiled for {target.name}: {error}") from error
    count_compilation(time.perf_counter_ns() - start)
    return compiled


def _options(code: bytes, device: jax.Device) -> dict[str, str]:
    return compiler_options(device.platform, has_loops=b"while" in code)


def write(path: str | os.PathLike[str], target: Target, codes: Sequence[bytes], compiled: Sequence[bytes]) -> None:
    """Write the file beside the step at `path`, atomically. Raises OSError.

    codes: StableHLO of its programs; compiled: their executables.
    """

    def description(parts: Sequence[Part]) -> Executables:
        programs = [StoredExecutable(sha256(code).hexdigest(), part) for code, part in zip(codes, parts, strict=True)]
        return Executables(VERSION, target.name, environment(target), tuple(programs))

    sizes = [len(executable) for executable in compiled]
    step_file.write(path_beside(path), EXECUTABLES, sizes, compiled, description, mode=0o644)  # readers refuse what a group may write


def load(path: str | os.PathLike[str], codes: Sequence[bytes], target: Target, device: jax.Device) -> list[Run] | None:
    """The executables of the step at `path`, whose programs have this StableHLO, on a device of this process; else None, and a warning.

    target: the devices of this process.
    """
    beside = path_beside(path)
    try:
        with open_owned(beside, follow_links=True) as file:
            reader = Reader(file, "it", EXECUTABLES)
            _check(reader.description, codes, target)
            compiled = [bytes(reader.part(program.value, "an executable")) for program in reader.description.programs]
        return [load_executable(executable, device) for executable in compiled]
    except FileNotFoundError:
        problem = "it is not there"
    except (OSError, StepFileError, RuntimeError, ValueError, TypeError) as error:
        problem = " ".join(str(error).split())
    warnings.warn(
        f"{beside} is not used, and the programs of the step are compiled when they are called: {problem}", RuntimeWarning, stacklevel=3
    )
    return None


def _check(described: Executables, codes: Sequence[bytes], target: Target) -> None:
    """Raise StepFileError for executables of other programs, or for other devices or versions than this process has."""
    different = differences(described.environment, environment(target))
    if different:
        raise StepFileError(f"it was compiled for {described.compiled_for}: {'; '.join(different)}")
    if [program.code for program in described.programs] != [sha256(code).hexdigest() for code in codes]:
        raise StepFileError("it was compiled from other programs than those of this step")

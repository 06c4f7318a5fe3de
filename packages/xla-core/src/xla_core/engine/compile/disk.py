"""Compiled programs on disk, under our own graph key, so that a warm start neither traces nor compiles.

The payload of an entry (`engine/compile/entry.py`) is what `jax.experimental.serialize_executable` makes of a program. That is a
pickle of native code, so an entry is only as trustworthy as its file: folder and file must belong to this user and be writable
by nobody else, and links are not followed. Whatever does not fit (foreign, truncated, of another program or version) is ignored
with one warning, and the program is compiled.

The key covers the source of every lowering: of this package, and of the packages that registered the program's other operations. It does
not cover who compiled: what one process made for a target that it has not, all processes find that have such devices.
"""

from __future__ import annotations

import hashlib
import inspect
import marshal
import os
import pickle
import secrets
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import CellType, ModuleType
from typing import Any

import jax
import torch

import xla_core
from xla_core._version import __version__
from xla_core.base import config, metrics
from xla_core.base.dtypes import conversions
from xla_core.base.files import atomic_write, sync_file
from xla_core.base.owned_files import check_owned_folder, open_owned
from xla_core.engine.compile.entry import Identity, UnusableError, pack, unpack
from xla_core.engine.compile.environment import environment, tree_digest
from xla_core.engine.graph.graph import Graph
from xla_core.engine.placement.placement import Placement
from xla_core.engine.placement.sharding import sharding_at, sharding_text
from xla_core.engine.placement.target import Target

_HERE = Path(xla_core.__file__ or "").parent


@dataclass(slots=True)
class DiskCache:
    """A folder of compiled programs. `readonly`: look up, never write."""

    path: Path
    readonly: bool
    warned: bool = field(default=False, init=False)

    def load(self, identity: Identity) -> bytes | None:
        """The payload stored for `identity`, or None; warns once if an entry is there but not usable."""
        path = self._entry(identity)
        try:
            check_owned_folder(self.path)
            with open_owned(path, follow_links=False) as file:
                return unpack(identity, file.read())
        except FileNotFoundError:
            return None
        except (OSError, UnusableError) as error:
            self.complain(f"{path} is not used and the program compiled again: {error}")
            return None

    def store(self, identity: Identity, payload: bytes) -> None:
        """Write an entry whole or not at all; warns once if that is not possible."""
        if self.readonly:
            return
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_owned_folder(self.path)
            with atomic_write(self._entry(identity), mode=0o600) as temporary:
                temporary.write_bytes(pack(identity, payload))
                sync_file(temporary)  # not the folder: an entry whose name is lost in a crash is compiled again
        except OSError as error:
            self.complain(f"compiled programs are not kept in {self.path}: {error}")

    def complain(self, problem: str) -> None:
        """Warn, once for this cache."""
        if not self.warned:
            self.warned = True
            warnings.warn(f"compilation cache: {problem}", RuntimeWarning, stacklevel=2)

    def _entry(self, identity: Identity) -> Path:
        return self.path / f"{identity.key}.xla"


_active: DiskCache | None = None


def configure(path: str | os.PathLike[str], readonly: bool = False) -> DiskCache:
    """Use the folder `path` from now on."""
    global _active
    _active = DiskCache(Path(path).expanduser().absolute(), readonly)
    return _active


def active() -> DiskCache | None:
    """The cache in use: the configured one, else the one at `XLA_PERSISTENT_CACHE_PATH`, else None."""
    path = config.PERSISTENT_CACHE_PATH.get()
    if _active is None and path is not None:
        configure(path, config.PERSISTENT_CACHE_READ_ONLY.get())
    return _active


def load(key: str, graph: Graph, arguments: list[Any], placement: Placement) -> Callable[..., Any] | None:
    """The program stored for `key` on this kind of device, ready to call; None if there is no usable one."""
    disk = active()
    if disk is None:
        return None
    payload = disk.load(_identity(key, graph, arguments, placement))
    loaded = None
    if payload is not None:
        in_tree = jax.tree.structure((tuple(arguments), {}))
        out_tree = jax.tree.structure((0,) * (len(graph.outs) + 1))
        from jax.experimental import serialize_executable

        try:
            loaded = serialize_executable.deserialize_and_load(payload, in_tree, out_tree, placement.device.client, placement.devices)
        except (ValueError, TypeError, RuntimeError, KeyError, AttributeError, EOFError, pickle.UnpicklingError) as error:
            disk.complain(f"an entry could not be loaded and the program is compiled again: {error}")
    metrics.counter_add("PersistentCacheMiss" if loaded is None else "PersistentCacheHit")
    return loaded


def store(key: str, graph: Graph, compiled: Any, arguments: list[Any], placement: Placement) -> None:
    """Keep a program compiled for `arguments` under `key`, as `load` finds it, if there is a cache that may be written."""
    disk = active()
    if disk is None or disk.readonly:
        return
    from jax.experimental import serialize_executable

    try:
        payload, _, _ = serialize_executable.serialize(compiled)
    except (ValueError, TypeError, RuntimeError, NotImplementedError, AttributeError, pickle.PicklingError) as error:
        disk.complain(f"a program cannot be serialized on {placement.device.platform} and is not kept: {error}")
        return
    disk.store(_identity(key, graph, arguments, placement), payload)


def _identity(key: str, graph: Graph, arguments: list[Any], placement: Placement) -> Identity:
    devices = placement.devices
    # Of a program over several devices all their processes have the same.
    ids = [*[device.id for device in devices], len({device.process_index for device in devices})]
    around = _environment(placement.target)
    name = hashlib.sha256(f"{key}\n{ids}\n{around}\n{_lowerings(graph)}".encode()).hexdigest()
    return Identity(name, _interface(graph, arguments), around)


def _interface(graph: Graph, arguments: list[Any]) -> str:
    """A program's interface, as its caller sees it: `float32[4]@… donated, float64[1]@None -> f32[4]@None`."""
    donated = frozenset(graph.parts.donated)
    taken = [
        f"{argument.dtype}{list(argument.shape)}@{sharding_text(getattr(argument, 'sharding', None))}{' donated' * (index in donated)}"
        for index, argument in enumerate(arguments)
    ]
    results = [f"{aval}@{sharding_at(graph.entries, slot)}" for slot, aval in zip(graph.outs, graph.parts.results, strict=True)]
    return f"{', '.join(taken)} -> {', '.join(results)}"


def _lowerings(graph: Graph) -> list[str]:
    """Digests of lowerings outside this package that the graph uses."""
    functions = {id(signature.lower): signature.lower for signature in graph.parts.signatures}.values()
    return sorted({digest for function in functions if (digest := _code_digest(function))})


def _code_digest(function: Any, inside: frozenset[int] = frozenset()) -> str:
    """Digest of the package of a function, or of its file if that is in no package, and of the values that the function is bound to.

    Empty for functions of this package, whose digest `_environment` has. inside: ids of the values that are being digested.
    """
    bound: list[Any] = []
    while isinstance(function, partial):
        bound += [function.args, function.keywords]
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:  # an object that is called, or compiled: nothing to read
        bound.append(function)
        function = type(function).__call__
        code = getattr(function, "__code__", None)
    if code is None:
        return _value_digest(bound, inside)
    if code.co_filename.startswith(f"{_HERE}{os.sep}"):
        return ""
    bound += [getattr(function, "__self__", None), getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)]
    bound += [_contents(cell) for cell in getattr(function, "__closure__", None) or ()]
    file = Path(code.co_filename)
    if not file.is_file():  # typed in, or made by exec: digest the globals that it uses
        bound += [(name, function.__globals__[name]) for name in code.co_names if name in function.__globals__]
        return f"{hashlib.sha256(marshal.dumps(code)).hexdigest()}{_value_digest(bound, inside)}"
    while (file.parent / "__init__.py").is_file():
        file = file.parent
    return f"{tree_digest(file)}{_value_digest(bound, inside)}"


class _Nothing:
    """Stands for the contents of a closure cell that has none (yet)."""


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _Nothing


_OF_THIS_PROCESS = secrets.token_hex()


def _value_digest(value: Any, inside: frozenset[int]) -> str:
    """Digest of a value: equal in two processes only for equal values; unique to this process for one that cannot be pickled."""
    if value is None or id(value) in inside:
        return ""
    inside = inside | {id(value)}
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_value_digest(item, inside) for item in value)}]"
    if isinstance(value, ModuleType):
        return value.__name__
    if not isinstance(value, type) and (isinstance(value, partial) or hasattr(inspect.unwrap(value), "__code__")):
        return _code_digest(value, inside)
    try:
        return hashlib.sha256(pickle.dumps(value)).hexdigest()
    except Exception:  # whatever a class of the user's raises
        return _OF_THIS_PROCESS


@cache
def _environment(target: Target) -> str:
    """All that machine code depends on besides the recorded program: also what lowers it."""
    lowered_by = [__version__, tree_digest(_HERE), jax.__version__, torch.__version__, conversions()]
    return "\n".join([*lowered_by, *environment(target).values()])

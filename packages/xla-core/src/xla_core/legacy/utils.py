"""Small helpers that users import from `torch_xla.utils.utils`; nothing in the core depends on them."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def getenv_as(name: str, type: Callable[[str], T], defval: T | None = None) -> T | None:
    """The variable as `type`; `bool` reads an integer. Unset: `defval`."""
    text = os.environ.get(name)
    if text is None:
        return defval
    return type(int(text)) if type is bool else type(text)


def check_env_flag(name: str, default: str = "") -> bool:
    """Whether the variable says `true` (any case) or a positive integer."""
    text = os.environ.get(name, default).strip()
    if text.lower() == "true":
        return True
    try:
        return int(text) > 0
    except ValueError:
        return False


class LazyProperty(Generic[T]):
    """A value made by `gen_fn()` at the first read of `.value`."""

    def __init__(self, gen_fn: Callable[[], T]) -> None:
        self._gen_fn = gen_fn
        self._made: list[T] = []

    @property
    def value(self) -> T:
        """The value, the same at each read."""
        if not self._made:
            self._made.append(self._gen_fn())
        return self._made[0]


class SampleGenerator(Generic[T]):
    """Yields the same `data` `sample_count` times, at each iteration anew; stands in for a loader in benchmarks."""

    def __init__(self, data: T, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count

    def __len__(self) -> int:
        return self._sample_count

    def __iter__(self) -> Iterator[T]:
        return (self._data for _ in range(self._sample_count))


class FnDataGenerator:
    """Yields `count` pairs `(x, func(x))` with `x = gen_tensor(batch_size, *dims)`; `dims` is `[1]` if not given."""

    def __init__(
        self,
        func: Callable[[Any], Any],
        batch_size: int,
        gen_tensor: Callable[..., Any],
        dims: Iterable[int] | None = None,
        count: int = 1,
    ) -> None:
        self._func = func
        self._size = (batch_size, *(dims or (1,)))
        self._gen_tensor = gen_tensor
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for _ in range(self._count):
            data = self._gen_tensor(*self._size)
            yield data, self._func(data)


class Cleaner:
    """Calls `func(*args, **kwargs)` once: on `close()`, at the end of a `with` block, when collected, or at exit."""

    def __init__(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        self._finalizer = weakref.finalize(self, func, *args, **kwargs)

    def close(self) -> None:
        """Call it now, unless it was called before."""
        self._finalizer()

    def __enter__(self) -> Cleaner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class TmpFolder:
    """A new temporary folder, at path `.name`; removed with all that is in it when this object goes (see Cleaner)."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp()
        self._cleaner = Cleaner(shutil.rmtree, self.name, ignore_errors=True)

    def close(self) -> None:
        """Remove the folder now."""
        self._cleaner.close()

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *exc: object) -> None:
        self.close()


def eprint(*args: object, **kwargs: Any) -> None:
    """`print` to stderr."""
    print(*args, file=sys.stderr, **kwargs)


def null_print(*args: object, **kwargs: Any) -> None:
    """Print nothing: a `printfn` for those who want none."""


def get_print_fn(debug: bool | None = None) -> Callable[..., None]:
    """`eprint` if `debug`, else `null_print`. None: as the flag XLA_DEBUG says."""
    if debug is None:
        debug = check_env_flag("XLA_DEBUG")
    return eprint if debug else null_print


class TimedScope:
    """Prints `msg` and the milliseconds that the `with` block took."""

    def __init__(self, msg: str = "", printfn: Callable[[str], object] = eprint) -> None:
        self._msg = msg
        self._printfn = printfn
        self._start_s = 0.0

    def __enter__(self) -> TimedScope:
        self._start_s = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self._printfn(f"{self._msg}{(time.perf_counter() - self._start_s) * 1000.0:.3f}ms")


def timed(fn: Callable[[], T], msg: str = "", printfn: Callable[[str], object] = eprint) -> T:
    """`fn()`, with its milliseconds printed."""
    with TimedScope(msg=msg, printfn=printfn):
        return fn()


def parallel_work(num_workers: int, fn: Callable[..., T], *args: Iterable[Any]) -> list[T]:
    """`list(map(fn, *args))` on `num_workers` threads; the first exception, in input order, is raised."""
    with ThreadPoolExecutor(max_workers=num_workers) as executor:
        return list(executor.map(fn, *args))


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """`n` different TCP ports that nothing listens on at this moment."""
    with ExitStack() as opened:
        ports: list[int] = []
        for _ in range(n):
            listener = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listener.bind(("", 0))
            ports.append(listener.getsockname()[1])
        return ports


def as_list(value: Any) -> list[Any]:
    """A list as it is, a tuple as a list, anything else as a list of one."""
    if isinstance(value, list):
        return value
    return list(value) if isinstance(value, tuple) else [value]


def list_copy_append(ilist: Iterable[T], item: T) -> list[T]:
    """A new list: `ilist`, then `item`."""
    return [*ilist, item]


def shape(inputs: Any) -> list[int]:
    """Sizes of nested lists or tuples, outermost first. Raises: ValueError if they are ragged."""
    if not isinstance(inputs, (list, tuple)):
        return []
    inner = [shape(part) for part in inputs]
    if any(other != inner[0] for other in inner):
        raise ValueError(f"nested sequence is ragged: parts of shapes {inner}")
    return [len(inputs), *(inner[0] if inner else [])]


def flatten_nested_tuple(inputs: Any) -> tuple[Any, ...]:
    """All that is not a tuple, in order; a value that is no tuple gives a tuple of one."""
    if not isinstance(inputs, tuple):
        return (inputs,)
    return tuple(leaf for part in inputs for leaf in flatten_nested_tuple(part))

"""Limits on what it costs to read files that others made: on JSON, and on values of any size in messages (FORMAT.md §7)."""

from __future__ import annotations

import itertools
import json
import re
import reprlib
from collections import Counter
from collections.abc import Collection
from typing import Any

LARGEST_TEXT = 100 << 20
"""Bytes of an index, and of a shard's header, at most."""
MOST_PARTS = 8_000_000
"""Strings, commas, colons and opening brackets of one JSON text, at most: a value takes at least one. 100 MB of tensors have fewer."""
MOST_DIMS = 256
"""Dimensions of a tensor, at most: the time that torch takes grows with their square."""
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_PART = re.compile(rb'"[^"]*"?|[,:\[{]')
_MOST_ALIKE = 100
"""Keys with the same hash, at most: Python compares each of them with all others."""
_FEWEST_CHECKED = 1000
"""Keys of a mapping or set whose hashes are checked, at least: fewer are compared in no time, whatever their hashes."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 200
_short.maxlist = _short.maxtuple = 8


def shown(value: Any) -> str:
    """Shorten a value of any size for messages."""
    return _short.repr(value)


def is_file_name(name: str) -> bool:
    """Whether a name is a file name on every file system: no separators, no leading dot, 255 characters at most."""
    return _FILE.fullmatch(name) is not None


def parsed(data: bytes) -> Any:
    """Parse JSON. Raises ValueError if it is malformed, repeats a key in an object or has too many values; RecursionError."""
    check_parts(data)
    return json.loads(data.decode(), parse_constant=_refused, object_pairs_hook=_distinct)


def check_parts(data: bytes) -> None:
    """Raise ValueError for JSON of more than MOST_PARTS parts, before it is parsed."""
    if data.count(b'"') // 2 + sum(map(data.count, (b",", b":", b"[", b"{"))) <= MOST_PARTS:
        return  # this counts what is inside strings, too, so it is never too low
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    if sum(1 for _ in itertools.islice(_PART.finditer(plain), MOST_PARTS + 1)) > MOST_PARTS:
        raise ValueError(f"it holds more than {MOST_PARTS:,} values and keys: large data is saved as tensors")


def check_hashes(keys: Collection[Any]) -> None:
    """Raise ValueError for keys with so many equal hashes that a dict or set of them would take hours. Strings' hashes cannot be chosen."""
    if len(keys) < _FEWEST_CHECKED:
        return
    ((_, count),) = Counter(hash(key) for key in keys if type(key) is not str).most_common(1) or [(0, 0)]
    if count > _MOST_ALIKE:
        raise ValueError(f"{count:,} keys of one mapping or set have the same hash, of {_MOST_ALIKE} at most: save them as a tensor")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        ((key, count),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {shown(key)} occurs {count} times in one object")
    return mapping


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")

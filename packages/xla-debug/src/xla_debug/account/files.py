"""Accounts as files: compact JSON, never half-written, and read back with all that can be wrong said in one line."""

from __future__ import annotations

import functools
import json
import os
import threading
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from xla_debug.account.schema import FORMAT, VERSION, Account
from xla_debug.errors import AccountFileError

_BEGINNING = f'{{"format":"{FORMAT}"'.encode()
_MAKE = "write a new one with `xla-debug run --json FILE SCRIPT`"


@functools.cache
def _adapter() -> TypeAdapter[Account]:
    return TypeAdapter(Account)


def dumped(account: Account) -> bytes:
    """An account as compact JSON."""
    try:
        return _adapter().dump_json(account)
    except PydanticSerializationError:  # file names need not be Unicode: what is not becomes `?`
        plain = _adapter().dump_python(account, mode="json")
        return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def write(account: Account, path: str | os.PathLike[str]) -> None:
    """Write an account as JSON. Readers see the old file or the new one, never a part. Raises OSError."""
    write_whole(dumped(account), path)


def write_whole(data: bytes, path: str | os.PathLike[str]) -> None:
    """Write a file beside its place, then move it there. Raises OSError."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        beside.write_bytes(data)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str]) -> Account:
    """The account in a file. Raises AccountFileError if it is missing, cut off, something else, or of a newer version."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise AccountFileError(f"{path}: there is no such file; {_MAKE}") from None
    except OSError as error:
        raise AccountFileError(f"{path}: cannot be read ({error.strerror}); give the JSON file of an account") from error
    found = _parsed(data, path)
    version = found.get("version")
    if type(version) is not int or version < 1:
        raise AccountFileError(f"{path}: an account of version {version!r}, which never was; {_MAKE}")
    if version > VERSION:
        raise AccountFileError(
            f"{path}: an account of version {version}, this xla-debug reads up to {VERSION}; upgrade it: pip install -U xla-debug"
        )
    try:
        return _adapter().validate_python(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise AccountFileError(f"{path}: an account that is damaged at {place} ({first['msg'].lower()}); {_MAKE}") from error


def _parsed(data: bytes, path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON object of a file that says it is an account."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        if _BEGINNING.startswith(data) or data.startswith(_BEGINNING):
            raise AccountFileError(f"{path}: cut off after {len(data)} bytes; copy it again, or {_MAKE}") from error
        raise AccountFileError(f"{path}: not JSON ({error}); give the JSON file of an account") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise AccountFileError(f"{path}: JSON, but no account; {_MAKE}")
    return found

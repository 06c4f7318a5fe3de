"""Call torch.save, but raise the system's own errors."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import torch

from xla_serialization.core import files


def write_torch(data: Any, path: Path) -> None:
    """`torch.save(data, path)`. Raises OSError with the file's name, also of a disk that is full."""
    with files.name_errors(path), open(path, "wb") as file:
        write_into(data, file)


def write_into(data: Any, file: IO[bytes]) -> None:
    """`torch.save(data, file)`. Raises OSError where the file does: torch itself would raise a later RuntimeError about its archive."""
    try:
        torch.save(data, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise

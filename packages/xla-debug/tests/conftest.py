"""What the tests of this package share."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jax
import pytest


def _names_in(folder: Path) -> Counter[str]:
    files = list(folder.glob("plugins/profile/*/*.xplane.pb"))
    assert files, f"no profile below {folder}"
    planes = [plane for file in files for plane in jax.profiler.ProfileData.from_file(str(file)).planes]
    return Counter(event.name for plane in planes for line in plane.lines for event in line.events)


@pytest.fixture
def names_in() -> Callable[[Path], Counter[str]]:
    """How often each event stands in the profiles below a folder."""
    return _names_in


def _free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """A port that nobody listens on."""
    return _free_port

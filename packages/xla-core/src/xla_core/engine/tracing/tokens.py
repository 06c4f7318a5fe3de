"""The token that orders collectives, while this thread records apart from its devices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

StandIn = Callable[[Any], Any]


class _Apart(threading.local):
    """This thread's recording apart from that of its devices, if there is one: how it stands for a tensor which is not an argument."""

    stand_in: StandIn | None = None


_apart = _Apart()


def stand_in_by(stand_in: StandIn | None) -> StandIn | None:
    """Let what this thread now records use `stand_in(token)` for a device's token (None: the token); gives the previous one."""
    previous, _apart.stand_in = _apart.stand_in, stand_in
    return previous


def token_here(token: Any) -> Any:
    """The token as what this thread now records may use it."""
    return token if token is None or _apart.stand_in is None else _apart.stand_in(token)

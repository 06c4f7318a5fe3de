"""The token that orders collectives, while this thread records apart from its devices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

StandIn = Callable[[Any], Any]


class _Apart(threading.local):
    """How this thread's separate recording takes in a tensor from outside; None if it records on the devices' own pending graphs."""

    stand_in: StandIn | None = None


_apart = _Apart()


def stand_in_by(stand_in: StandIn | None) -> StandIn | None:
    """Make this thread's recording take `stand_in(token)` for a device's token (None: the token itself). Returns the previous stand-in."""
    previous, _apart.stand_in = _apart.stand_in, stand_in
    return previous


def token_here(token: Any) -> Any:
    """The token in the form that this thread's recording can use: through the stand-in, if one is set."""
    return token if token is None or _apart.stand_in is None else _apart.stand_in(token)

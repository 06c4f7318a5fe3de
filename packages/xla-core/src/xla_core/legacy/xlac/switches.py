"""Switches of recording and running, and versions."""

from __future__ import annotations

from collections.abc import Callable

import torch

from xla_core._version import __version__
from xla_core.api import eager
from xla_core.engine.runtime.source_location import name_graphs, region_name
from xla_core.engine.runtime.sync import forbid_reads
from xla_core.engine.tensor.dispatch import capture_lines, captures_lines


def _get_git_revs() -> dict[str, str]:
    return {"xla": __version__, "torch": str(torch.version.git_version)}


class _Execution:
    """Whether values may be read."""

    allowed = True


def _set_allow_execution(allow: bool) -> bool:
    previous, _Execution.allowed = _Execution.allowed, bool(allow)
    forbid_reads(None if allow else "a value was read while _XLAC._set_allow_execution(False) is in force")
    return previous


def _get_allow_execution() -> bool:
    return _Execution.allowed


def _set_ir_debug(on: bool) -> None:
    """Decide whether each operation keeps the user's line."""
    capture_lines(bool(on))


_get_ir_debug = captures_lines


def _set_use_eager_mode(on: bool) -> None:
    eager.eager_mode(on)


_get_use_eager_mode = eager.is_eager_mode


def _hint() -> tuple[Callable[[bool], None], Callable[[], bool]]:
    """Make a setter and a getter of a flag, at first False, which programs do not depend on."""
    noted = [False]

    def note(on: bool) -> None:
        noted[0] = bool(on)

    return note, lambda: noted[0]


# Whether 0 and 1, or all numbers, are constants of programs: here each number is a constant until it varies.
_set_xla_handle_special_scalars, _get_xla_handle_special_scalars = _hint()
_set_xla_all_numbers_special_scalars, _get_xla_all_numbers_special_scalars = _hint()
# Whether equal uploads share a buffer: here numbers enter programs without buffers of their own.
_set_xla_enable_device_data_cache, _get_xla_enable_device_data_cache = _hint()


def _set_current_graph_name(name: str) -> None:
    """Name this thread's programs in profiles and events; empty: name them after the user's function. Named regions take precedence."""
    name_graphs(name or None)


def _get_current_graph_name() -> str:
    """The name of the innermost region, or the name that `_set_current_graph_name` set."""
    return region_name() or ""

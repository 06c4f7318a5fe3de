"""Switches of recording and running, and versions."""

from __future__ import annotations

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
    """Let each operation keep the user's line, or not."""
    capture_lines(bool(on))


def _get_ir_debug() -> bool:
    """Whether each operation keeps the user's line."""
    return captures_lines()


def _set_use_eager_mode(on: bool) -> None:
    eager.eager_mode(on)


def _get_use_eager_mode() -> bool:
    return eager.is_eager_mode()


class _Hints:
    """What upstream's runtime is told about numbers and uploads. Programs here find out by themselves which numbers vary."""

    special_scalars = False
    all_special_scalars = False
    data_cache = False


def _set_xla_handle_special_scalars(on: bool) -> None:
    """Note whether 0 and 1 are to be constants of programs. A hint: here any number is one until it varies."""
    _Hints.special_scalars = bool(on)


def _get_xla_handle_special_scalars() -> bool:
    """What was noted."""
    return _Hints.special_scalars


def _set_xla_all_numbers_special_scalars(on: bool) -> None:
    """Note whether all numbers are to be constants of programs. A hint, as `_set_xla_handle_special_scalars`."""
    _Hints.all_special_scalars = bool(on)


def _get_xla_all_numbers_special_scalars() -> bool:
    """What was noted."""
    return _Hints.all_special_scalars


def _set_xla_enable_device_data_cache(on: bool) -> None:
    """Note whether equal uploads are to share a buffer. A hint: here numbers enter programs without a buffer each."""
    _Hints.data_cache = bool(on)


def _get_xla_enable_device_data_cache() -> bool:
    """What was noted."""
    return _Hints.data_cache


def _set_current_graph_name(name: str) -> None:
    """Name the programs of this thread in profiles and events; empty: after the user's function. Regions with a name go first."""
    name_graphs(name or None)


def _get_current_graph_name() -> str:
    """The name of the innermost region, or what `_set_current_graph_name` set."""
    return region_name() or ""

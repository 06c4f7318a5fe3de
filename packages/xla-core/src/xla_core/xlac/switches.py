"""Switches of recording and running, and versions."""

from __future__ import annotations

import torch

from xla_core._version import __version__
from xla_core.api import eager
from xla_core.frontend.dispatch import capture_lines, captures_lines
from xla_core.runtime.sync import forbid_reads


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

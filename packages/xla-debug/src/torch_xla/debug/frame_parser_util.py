"""Parse the causes of compilations and executions from a file of PT_XLA_DEBUG_FILE."""

from __future__ import annotations

from xla_debug.analysis.frame_parser import process_frames

__all__ = ["process_frames"]

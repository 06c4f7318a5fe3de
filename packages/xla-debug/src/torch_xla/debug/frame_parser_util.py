"""Parse the causes of compilations and executions from a file of PT_XLA_DEBUG_FILE."""

from xla_debug.analysis.frame_parser import create_report, parse_frame_content, parse_frames, process_frames

__all__ = ["create_report", "parse_frame_content", "parse_frames", "process_frames"]

"""Print and log the progress of example programs."""

from __future__ import annotations

from xla_core.api.training_report import (
    close_summary_writer,
    get_summary_writer,
    mp_test,
    now,
    print_test_update,
    print_training_update,
    write_to_summary,
)

__all__ = [
    "close_summary_writer",
    "get_summary_writer",
    "mp_test",
    "now",
    "print_test_update",
    "print_training_update",
    "write_to_summary",
]

"""The paths by which the sampler tells what a thread does."""

from __future__ import annotations

from pathlib import Path

from xla_debug.recording import sampler


def test_files_that_events_time_exist() -> None:
    missing = [path for path in sampler._TIMED if not Path(path).exists()]
    assert missing == [], "the core's files have moved: name them anew, or their time counts twice"

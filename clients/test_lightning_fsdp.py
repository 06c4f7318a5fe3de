"""Lightning Fabric trains a sharded model on two replicas as plain training does, and saves it whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_fabric_shards_accumulates_clips_and_saves(run_program: Callable[..., Any]) -> None:
    report = run_program("lightning_fsdp", CPU_NUM_DEVICES="2")
    assert report["size"] == 2 and report["names"]
    assert max(report["off"].values()) < 1e-5

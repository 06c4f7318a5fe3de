"""Profiles of cold starts: Python frames do not push out what the compiler and the devices did."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

import torch_xla
import torch_xla.debug.profiler as xp
from xla_debug.profiling import profiler
from xla_debug.profiling.full_trace import MOST_EVENTS, complete_trace

pytestmark = pytest.mark.filterwarnings("ignore:builtin type event_stats has no __module__")  # of jaxlib 0.12


def frame(number: int) -> int:
    return number


def cold_start(folder: Path, frames: int, width: int) -> Path:
    """The profile of a process that runs Python for long, and then compiles and runs a program that nobody has compiled."""
    torch_xla.sync()
    xp.start_trace(folder)
    for number in range(frames):
        frame(number)
    kept = torch.ones(width, width, device="xla").sinh() @ torch.ones(width, width, device="xla")
    torch_xla.sync(wait=True)
    xp.stop_trace()
    assert kept.shape == (width, width)
    (file,) = folder.glob("plugins/profile/*/*.xplane.pb")
    return file


def in_json(profile: Path) -> list[dict[str, Any]]:
    (file,) = profile.parent.glob("*.trace.json.gz")
    events: list[dict[str, Any]] = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def in_profile(profile: Path) -> tuple[set[str], int]:
    """The names of what is no Python frame, and how much of it there is."""
    planes = jax.profiler.ProfileData.from_file(str(profile)).planes
    names = [event.name for plane in planes for line in plane.lines for event in line.events if not event.name.startswith("$")]
    return set(names), len(names)


def check_complete(profile: Path, most_frames: int) -> None:
    shown = in_json(profile)
    names, count = in_profile(profile)
    others = [event for event in shown if not event["name"].startswith("$")]
    assert {event["name"] for event in others} == names and len(others) == count
    assert any("hlo_op" in event["args"] for event in others), "what ran on the device"
    assert any("ompile" in event["name"] for event in others), "the compiler"
    frames = [event for event in shown if event["name"].startswith("$")]
    assert len(frames) == most_frames and len(shown) < MOST_EVENTS


def test_a_trace_that_lost_events_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "complete_trace", lambda profile: False)  # the file as JAX wrote it
    (torch.ones(5, 5, device="xla").sinh() @ torch.ones(5, 5, device="xla")).sum().item()  # JAX's own first calls are millions of frames
    profile = cold_start(tmp_path, frames=10, width=37)
    _, count = in_profile(profile)
    assert not complete_trace(profile, most_events=1 << 40), "it has all"
    assert complete_trace(profile, most_events=count, most_frames=100)
    check_complete(profile, 100)


def test_frames_can_be_left_out(tmp_path: Path) -> None:
    xp.start_trace(tmp_path, python_frames=False)
    value = torch.randn(41, 41).to("xla")
    value.sinh().sum().item()
    xp.stop_trace()
    (profile,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    names, _ = in_profile(profile)
    shown = in_json(profile)
    assert names and not any(event["name"].startswith("$") for event in shown)
    assert {each.operator for each in xp.operator_times(tmp_path)} & {"aten.sinh", "aten.sum"}


@pytest.mark.long
def test_a_cold_start_of_more_frames_than_the_file_holds_has_compiler_and_device(tmp_path: Path) -> None:
    profile = cold_start(tmp_path, frames=2 * MOST_EVENTS, width=43)
    check_complete(profile, 200_000)
    assert any(each.operator == "aten.mm" or "aten.mm" in each.fused for each in xp.operator_times(tmp_path))

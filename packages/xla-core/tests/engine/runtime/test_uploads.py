"""A host that records faster than the device computes does not fill the memory with inputs."""

from __future__ import annotations

import jax
import pytest
import torch

import torch_xla
from xla_core.engine.runtime import executor, uploads
from xla_core.engine.runtime.client import current_recorder


def in_flight(steps: int) -> int:
    """The most programs that were launched and not done, in steps of some milliseconds over a megabyte each."""
    recorder = current_recorder()
    state = torch.zeros(512, 512, device="xla")
    tokens: list[jax.Array] = []
    most = 0
    for _ in range(steps):
        x = torch.full((512, 512), 0.001).to("xla")
        for _ in range(20):
            state = (state + x) @ x
        torch_xla.sync()
        token = executor.last_launched(recorder)
        assert token is not None
        tokens = [earlier for earlier in [*tokens, token] if not earlier.is_ready()]  # type: ignore[attr-defined]
        most = max(most, len(tokens))
    torch_xla.sync(wait=True)
    return most


def test_programs_in_flight_hold_two_parts_of_the_memory_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_part", lambda recorder: 3 << 20)
    assert in_flight(40) <= 2 * 4 + 1


def test_a_step_that_uploads_little_waits_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_part", lambda recorder: 41 << 20)
    monkeypatch.setattr(executor, "_catch_up", None)
    current_recorder().uploaded = 0
    in_flight(40)
    with pytest.raises(TypeError):  # the next bytes are those of another part
        in_flight(2)
    torch_xla.sync(wait=True)
    current_recorder().uploaded = 0


class Failed:
    """The token of a program that failed while it ran. XLA:CPU tells of failures at the launch, so that none can be had from it."""

    waited = 0

    def block_until_ready(self) -> None:
        self.waited += 1
        raise RuntimeError("INTERNAL: a program failed")


def test_a_program_that_failed_is_not_told_to_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Failed()
    monkeypatch.setattr(uploads, "_part", lambda recorder: 1)
    monkeypatch.setitem(executor._marks, current_recorder(), failed)
    for number in range(4):
        state = torch.full((3,), float(number)).to("xla") + 1
        torch_xla.sync()
    assert failed.waited == 1
    assert state.tolist() == [4.0] * 3

"""When captured calls are verified: a clock that the tests turn, calls that take as long as they say."""

from __future__ import annotations

import pytest

from xla_core.features.captured.checks import Checks, Verify

STEP_S, LAUNCH_S = 1e-3, 0.5e-3


def verified_calls(checks: Checks, calls: int, verifying_s: float, step_s: float = STEP_S, busy: bool = False) -> list[int]:
    """The numbers of the calls that are verified. verifying_s: what such a call takes longer than a step."""
    now, verified = 0.0, []
    for number in range(calls):
        if checks.due(now, busy):
            verified.append(number)
            checks.verified(LAUNCH_S + verifying_s, busy)
            now += verifying_s
        else:
            checks.launched(LAUNCH_S)
        now += step_s
    return verified


def captured(verify: Verify = "auto") -> Checks:
    checks = Checks(verify)
    checks.captured()
    return checks


def test_the_first_sixteen_calls_after_each_capture_are_verified() -> None:
    checks = captured()
    assert verified_calls(checks, 16, 1.0) == list(range(16))
    checks.captured()
    assert verified_calls(checks, 16, 1.0) == list(range(16))


@pytest.mark.parametrize("verifying_s", [0.1e-3, 0.5e-3, 1e-3])
def test_later_calls_are_verified_within_three_percent_of_the_time(verifying_s: float) -> None:
    calls = 20_000
    checks = captured()
    verified = verified_calls(checks, calls, verifying_s)[17:]  # by the 17th it learns what verifying costs
    assert calls / 64 * 0.99 < len(verified)
    assert len(verified) * verifying_s <= 0.0305 * calls * STEP_S


def test_however_dear_one_of_64_calls_is_verified() -> None:
    verified = verified_calls(captured(), 17 + 64 * 10, 1.0)[16:]
    assert [after - before for before, after in zip(verified, verified[1:], strict=False)] == [64] * 10


def test_calls_that_wait_for_an_accelerator_are_all_verified() -> None:
    assert verified_calls(captured(), 500, 1.0, busy=True) == list(range(500))


@pytest.mark.parametrize(("verify", "expected"), [(1, [0, 1, 2, 3, 4, 5]), (3, [2, 5]), (None, [])])
def test_a_fixed_number_counts_calls_and_none_verifies_nothing(verify: Verify, expected: list[int]) -> None:
    assert verified_calls(captured(verify), 6, 1.0, busy=True) == expected

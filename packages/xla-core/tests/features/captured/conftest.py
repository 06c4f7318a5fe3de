"""Captured steps compile once: the recorded ones beside them must, too, to be equal bit by bit."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_TIERED_COMPILATION", "0")

"""Whether the environment wants spans, and where it sends them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from xla_debug.recording.opentelemetry_environment import provider_of_environment, spans_wanted
from xla_debug.settings import SETTINGS

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.example:4318"}
CONSOLE = {"OTEL_TRACES_EXPORTER": "console"}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS:
        if "OTEL_" in setting.name or "OPENTELEMETRY" in setting.name:
            monkeypatch.delenv(setting.name, raising=False)


@pytest.mark.parametrize(
    ("variables", "recorded", "wanted"),
    [
        ({}, True, False),  # the SDK alone is no exporter
        (ENDPOINT, True, True),
        (ENDPOINT, False, False),  # a program that nobody records
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector.example:4318/v1/traces"}, True, True),
        (CONSOLE, True, True),
        ({"OTEL_TRACES_EXPORTER": "none", **ENDPOINT}, True, False),
        ({"XLA_DEBUG_OPENTELEMETRY": "0", **ENDPOINT}, True, False),
        ({"XLA_DEBUG_OPENTELEMETRY": "1"}, False, True),
    ],
)
def test_whether_spans_are_wanted(variables: dict[str, str], recorded: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert spans_wanted(recorded) is wanted


def test_without_the_sdk_only_who_asks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    monkeypatch.setenv(*next(iter(ENDPOINT.items())))
    assert not spans_wanted(recorded=True)
    monkeypatch.setenv("XLA_DEBUG_OPENTELEMETRY", "1")
    with pytest.raises(ImportError, match=r'XLA_DEBUG_OPENTELEMETRY=1 needs .* pip install "xla-debug\[opentelemetry\]"'):
        spans_wanted(recorded=True)


def test_none_is_no_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert provider_of_environment() is None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"OTEL_TRACES_EXPORTER": "console,dreams"}, "'dreams' is not installed: .* console"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "pigeons"}, "'pigeons'.* grpc or http/protobuf"),
    ],
)
def test_what_cannot_be_exported_to_says_what_to_do(variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ImportError, match=message):
        provider_of_environment()


def test_spans_that_went_nowhere_are_spoken_of(script: Callable[..., Any]) -> None:
    ran = script(
        "import torch, torch_xla\nx = torch.ones(3).to('xla')\ntorch_xla.sync()\n",
        XLA_DEBUG_OPENTELEMETRY="1",
        OTEL_TRACES_EXPORTER="dreams",
    )
    assert ran.out == "" and ran.err.count("no spans were made") == 1 and "'dreams' is not installed" in ran.err

"""`xla-debug env`: versions, devices and settings, for people and for bug reports, also where no device starts."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import forked_python
import pytest
from click.testing import CliRunner

import xla_debug
from xla_core import abi
from xla_core.abi.process import client
from xla_core.abi.settings import Setting
from xla_debug import settings
from xla_debug.cli import group
from xla_debug.recording.environment import environment


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings as if just this package and one with a secret were installed."""
    secret = Setting("XLA_TEST_JOB_KEY", None, "A secret.", str, "a text")
    monkeypatch.setattr(abi.settings, "installed_settings", lambda: {"xla-debug": settings.SETTINGS, "xla-test": (secret,)})


def test_versions_are_those_that_are_installed() -> None:
    found = environment()
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.versions["xla-debug"] == xla_debug.__version__
    for name in ("torch", "jax", "jaxlib", "xla-core"):
        assert found.versions[name] == metadata.version(name)
    assert "libtpu" in found.versions or not any(each.name == "libtpu" for each in metadata.distributions())


def test_settings_are_those_that_are_set_and_secrets_stay_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAVE_GRAPH_FMT", "dot")
    monkeypatch.setenv("XLA_DEBUG_ACCOUNT_DIR", "")
    monkeypatch.setenv("XLA_TEST_JOB_KEY", "do not tell")
    assert environment().settings == {"SAVE_GRAPH_FMT": "dot", "XLA_TEST_JOB_KEY": "(hidden)"}


def test_a_value_that_is_not_allowed_is_reported_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAVE_GRAPH_FMT", "png")
    assert environment().settings == {"SAVE_GRAPH_FMT": "png"}


def report(*options: str) -> str:
    result = CliRunner().invoke(group, ["env", *options], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_bug_report_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAVE_GRAPH_FMT", "hlo")
    found: dict[str, Any] = json.loads(report("--json"))
    devices = client().devices
    assert set(found) == {"python", "platform", "versions", "settings", "devices", "problems"}
    assert found["settings"] == {"SAVE_GRAPH_FMT": "hlo"}
    assert found["devices"] == {"kind": "CPU", "count": len(devices), "models": [devices[0].device_kind]}


def test_people_see_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_DEBUG_ACCOUNT_DIR", "/some/[bold]/folder")
    shown = report()
    for text in (metadata.version("torch"), environment().platform, "1 × CPU (cpu)", "XLA_DEBUG_ACCOUNT_DIR", "/some/[bold]/folder"):
        assert text in shown


def test_without_settings_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in settings.SETTINGS:
        monkeypatch.delenv(setting.name, raising=False)
    assert "all defaults" in report()


def test_devices_that_do_not_start_are_said_and_do_not_matter(tmp_path: Path) -> None:
    """In a process of its own: this one's devices run already."""
    environ = {**os.environ, "PJRT_DEVICE": "NEURON"}
    done = forked_python.run(
        [sys.executable, "-m", "xla_debug", "env", "--json"], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (problem,) = found["problems"]
    assert found["devices"] == {} and "PJRT_DEVICE=NEURON" in problem
    assert found["versions"]["jax"] == metadata.version("jax")

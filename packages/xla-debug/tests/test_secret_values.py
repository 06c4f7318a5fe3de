"""Secrets of the command line and of variables: no form of them gets into a report, and what is none stays."""

from __future__ import annotations

import json
import os
import string
import sys
from pathlib import Path

import forked_python
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from xla_debug.cli import group
from xla_debug.run_report.excerpts import excerpt
from xla_debug.secret_values import HIDDEN, hide_in_arguments, hide_in_source, hide_value, is_secret

SECRET = "s3cr3t-Value"
NAMES = ["token", "TOKEN", "api-key", "api_key", "apiKey", "HF_TOKEN", "db.password", "aws-secret-access-key", "apikey", "passwd", "auth"]
FORMS = {
    "--N=V": ["--{name}={value}"],
    "--N V": ["--{name}", "{value}"],
    "-N=V": ["-{name}={value}"],
    "-N V": ["-{name}", "{value}"],
    "N=V": ["{name}={value}"],
    "hydra": ["++trainer.{name}={value}"],
    "--env N=V": ["--env", "{name}={value}"],
    "--env=N=V": ["--env=X_{name}={value}"],
    "among others": ["--set", "lr=3,{name}={value}"],
    "JSON": ['{{"lr": 3, "{name}": "{value}"}}'],
    "JSON of an option": ['--config={{"{name}": "{value}", "lr": 3}}'],
    "YAML": ["--config", "{name}: {value}"],
    "query": ["https://host/path?a=1&{name}={value}&b=2"],
    "code": ["-c", "from hub import login\nlogin({name}='{value}')"],
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_secret_is_hidden_in_each_form(form: list[str], name: str) -> None:
    line = ["train.py", *(part.format(name=name, value=SECRET) for part in form), "--epochs", "3"]
    shown = hide_in_arguments(line)
    assert SECRET not in " ".join(shown) and HIDDEN in " ".join(shown)
    assert shown[0] == "train.py" and shown[-2:] == ["--epochs", "3"]


@pytest.mark.parametrize(
    "text",
    [
        f"https://user:{SECRET}@host/path",
        f"--remote=https://{SECRET}@host",
        f"--db=postgres://user:a/{SECRET}@host/db",
        f"redis://:{SECRET}@host:1/0",
        f"user:{SECRET}@host",
        f"DATABASE=mysql://user:{SECRET}@host",
        f"Authorization: Bearer {SECRET}",
        f"-DTOKEN={SECRET}",
    ],
)
def test_a_secret_is_hidden_without_an_option(text: str) -> None:
    for line in (["run", text], ["--url", text], ["--env", text]):
        shown = hide_in_arguments(line)
        assert SECRET not in " ".join(shown) and HIDDEN in shown[1]


def test_all_values_of_an_option_of_several_are_hidden() -> None:
    assert hide_in_arguments(["--api-keys", "a", "b", "--lr", "3"]) == ["--api-keys", HIDDEN, HIDDEN, "--lr", "3"]


@pytest.mark.parametrize(
    "line",
    [
        ["train.py", "--lr=3", "--epochs", "3", "data/train", "-v"],
        ["--max-tokens", "512", "--num_tokens=1e6", "max_tokens=7"],
        ["--tokenizer", "gpt2", "--monkey=1", "--keyboard", "us"],
        ["--path=a:b", "git@github.com:owner/repo", "https://host/path?a=1", "cuda:0", "a==b", "=", "", "--", "-"],
        ["--use-token", "--lr", "3"],
    ],
)
def test_what_is_no_secret_stays(line: list[str]) -> None:
    assert hide_in_arguments(line) == line


@given(st.lists(st.text()), st.sampled_from(NAMES), st.text(string.ascii_letters, min_size=12))
def test_whatever_stands_around_it_a_secret_is_hidden(around: list[str], name: str, value: str) -> None:
    value = f"V{value}V"
    line = [each for each in around if value not in each]
    for secret in ([f"--{name}={value}"], [f"--{name}", value], [f"{name}={value}"]):
        shown = hide_in_arguments([*line, *secret, *line])
        assert len(shown) == 2 * len(line) + len(secret) and not any(value in each for each in shown)


def test_variables_are_hidden_by_the_same_rule() -> None:
    for name in NAMES:
        assert is_secret(name) and hide_value(name, SECRET) == HIDDEN
    assert hide_value("OTEL_EXPORTER_OTLP_ENDPOINT", f"https://u:{SECRET}@host:4318") == f"https://{HIDDEN}@host:4318"
    assert hide_value("XLA_IR_DEBUG", "1") == "1"


@pytest.mark.parametrize(
    "line",
    [
        'login(token="V", n=1)',
        "os.environ['HF_TOKEN'] = 'V'",
        'key: str = "V"',
        '{"password": "V"}',
        "secret = b'V'",
        'x = "https://u:V@h"',
    ],
)
def test_literal_secrets_in_source_are_hidden(line: str) -> None:
    assert "V" not in hide_in_source(line) and HIDDEN in hide_in_source(line)


def test_the_source_around_a_finding_has_no_literal_secrets(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f'login(token="{SECRET}")\nloss.item()\n')
    shown = excerpt(f"{script}:2")
    assert shown is not None and shown.lines == [f"login(token={HIDDEN})", "loss.item()"]


PROGRAM = """
import subprocess, sys
import torch, torch_xla
for size in (3, 4, 3, 4):
    kept = torch.ones(size, device="xla").sum().item()
    torch_xla.sync()
if "child" not in sys.argv:
    subprocess.run([sys.executable, __file__, "child", "--password", sys.argv[1].partition("=")[2]], check=True)
"""


def test_no_output_of_a_recorded_run_holds_a_secret(tmp_path: Path) -> None:
    """The report as JSON and as a page, spans, scalars, explanations, programs, recordings of each process, a running job, a comparison."""
    (tmp_path / "train.py").write_text(PROGRAM)
    out = tmp_path / "out"
    out.mkdir()
    variables = {
        "PJRT_DEVICE": "CPU",
        "OTEL_TRACES_EXPORTER": "console",
        "PT_XLA_DEBUG": "1",
        "XLA_METRICS_FILE": str(out / "metrics.txt"),
        "XLA_SAVE_TENSORS_FILE": str(out / "programs.txt"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://user:{SECRET}@localhost:1",
    }
    script = ["train.py", f"--token={SECRET}", "--env", f"API_KEY={SECRET}", f"https://user:{SECRET}@host"]
    report = ["--json", str(out / "report.json"), "--html", str(out / "page.html"), "--tensorboard", str(out / "scalars")]

    def run(*line: str, **more: str) -> str:
        done = forked_python.run(
            [sys.executable, *line], cwd=tmp_path, env={**os.environ, **variables, **more}, capture_output=True, text=True, check=True
        )
        return done.stdout + done.stderr

    printed = run("-m", "xla_debug", "run", "--opentelemetry", *report, *script)
    printed += run(*script, XLA_DEBUG_ACCOUNT_DIR=str(out / "recordings"))
    recordings = list((out / "recordings").iterdir())
    for line in (["watch", "--once", str(out / "recordings")], ["diff", str(out / "report.json"), str(recordings[0])]):
        printed += CliRunner().invoke(group, line, catch_exceptions=False).output
    for file in out.rglob("*"):
        assert SECRET not in file.name and (file.is_dir() or SECRET.encode() not in file.read_bytes()), file
    assert SECRET not in printed
    found = json.loads((out / "report.json").read_text())
    assert found["command"] == ["train.py", f"--token={HIDDEN}", "--env", f"API_KEY={HIDDEN}", f"https://{HIDDEN}@host"]
    assert found["environment"]["settings"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == f"http://{HIDDEN}@localhost:1"
    commands = [json.loads(recording.read_text())["command"] for recording in recordings]
    assert sorted(command[-1] for command in commands) == [HIDDEN, f"https://{HIDDEN}@host"]
    assert "xla.execute" in printed and "train.py" in printed

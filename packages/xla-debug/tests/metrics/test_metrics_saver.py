"""Reports in a file after each step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torch_xla.debug.metrics_saver import save_metrics
from xla_debug import plugin
from xla_debug.core import abi, events, job, metrics
from xla_debug.metrics import metrics_saver

STEPS = """
import torch, torch_xla
x = torch.zeros(3).to("xla")
for _ in range(3):
    x += 1
    torch_xla.sync()
print(x.sum().item())
"""


def numbers(text: str) -> list[int]:
    """The steps of the reports in a file, which must be whole."""
    blocks = text.split("[MetricsData; step=")
    assert blocks[0] == "" and all(block.endswith("\n\n") for block in blocks[1:]), "a report ends its lines, then comes another newline"
    return [int(block.partition("]\n")[0]) for block in blocks[1:]]


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., str]:
    """`saved(*args)`: the file after a report was saved in a thread of its own, whose steps count from 0."""
    path = tmp_path / "metrics"

    def run(times: int = 1) -> str:
        thread = threading.Thread(target=lambda: [save_metrics(str(path)) for _ in range(times)])
        thread.start()
        thread.join()
        return path.read_text(encoding="utf-8")

    return run


def test_a_block_is_a_header_and_the_report(saved: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi.metrics, "snapshot", lambda: metrics.Snapshot({"MarkStep": 2}, {}))
    block = "Counter: MarkStep\n  Value: 2\n\n"
    assert saved(2) == f"[MetricsData; step=0]\n{block}[MetricsData; step=1]\n{block}"
    assert numbers(saved()) == [0, 1, 0], "each thread counts for itself; a file is appended to"


def test_without_a_file_nothing_happens(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("XLA_METRICS_FILE", raising=False)
    save_metrics()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("stream", ["STDERR", "STDOUT"])
def test_streams(stream: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XLA_METRICS_FILE", stream)
    monkeypatch.setattr(job, "world_size", lambda: 4)
    save_metrics()
    out, err = capsys.readouterr()
    found, other = (err, out) if stream == "STDERR" else (out, err)
    assert len(numbers(found)) == 1 and other == ""


def test_each_replica_has_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_METRICS_FILE", str(tmp_path / "from_variable"))
    monkeypatch.setattr(job, "world_size", lambda: 4)
    monkeypatch.setattr(job, "ordinal", lambda: 2)
    save_metrics()
    save_metrics(str(tmp_path / "from_argument"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["from_argument.2", "from_variable.2"]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        save_metrics(str(tmp_path / "absent" / "metrics"))


def test_each_step_saves(script: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    assert script(STEPS, XLA_METRICS_FILE=str(path)).out == "9.0\n"
    text = path.read_text(encoding="utf-8")
    assert numbers(text) == [0, 1, 2], "a read is no step"
    counts = [block.partition("Counter: MarkStep\n  Value: ")[2][0] for block in text.split("[MetricsData; ")[1:]]
    assert counts == ["1", "2", "3"], "saved behind the step"


def test_reports_come_before_step_closures_and_from_the_local_master_only(script: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    found = script(
        f"""
        import pathlib, torch, torch_xla
        import torch_xla.core.xla_model as xm
        from xla_core.abi import job
        path = pathlib.Path({str(path)!r})
        xm.add_step_closure(lambda: print(path.read_text().count("MetricsData")))
        torch_xla.sync()
        job.local_ordinal = lambda: 1
        torch_xla.sync()
        print(path.read_text().count("MetricsData"))
        """,
        XLA_METRICS_FILE=str(path),
    )
    assert found.out == "1\n1\n"


@pytest.mark.long
def test_of_real_replicas(script: Callable[..., Any], tmp_path: Path) -> None:
    """Each has its file; steps are saved on the local master. What PT_XLA_DEBUG_FILE names is divided in the same way."""
    pytest.importorskip("torch_xla.distributed.xla_multiprocessing")
    script(
        f"""
        import torch, torch_xla
        import torch_xla.distributed.xla_multiprocessing as xmp
        from torch_xla.debug.metrics_saver import save_metrics

        def replica(index):
            x = torch.ones(3).to("xla")
            for _ in range(2):
                x += index
                torch_xla.sync()
            save_metrics({str(tmp_path / "end")!r})

        if __name__ == "__main__":
            xmp.spawn(replica)
        """,
        CPU_NUM_DEVICES="2",
        XLA_METRICS_FILE=str(tmp_path / "steps"),
        PT_XLA_DEBUG_LEVEL="1",
        PT_XLA_DEBUG_FILE=str(tmp_path / "explained"),
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["end.0", "end.1", "explained.0", "explained.1", "steps.0"]
    assert numbers((tmp_path / "end.1").read_text(encoding="utf-8")) == [0]
    assert numbers((tmp_path / "end.0").read_text(encoding="utf-8")) == [2], "the thread has saved two reports before"
    assert numbers((tmp_path / "steps.0").read_text(encoding="utf-8")) == [0, 1]


def test_steps_are_listened_to_only_where_a_file_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    listening: list[Any] = []
    monkeypatch.setattr(abi.events, "subscribe", lambda fn, *types: listening.append(types))
    monkeypatch.setattr(metrics_saver, "install", metrics_saver.install.__wrapped__)
    monkeypatch.delenv("XLA_METRICS_FILE", raising=False)
    plugin.prepare()
    assert listening == []
    monkeypatch.setenv("XLA_METRICS_FILE", "STDERR")
    plugin.prepare()
    assert listening == [(events.SyncEvent,)]

"""What example programs print."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from torch_xla.test import test_utils as report


class Writer:
    """Takes what a TensorBoard writer takes."""

    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int | None]] = {}
        self.calls: list[str] = []

    def add_scalar(self, name: str, value: float, step: int | None) -> None:
        self.scalars[name] = (value, step)

    def __getattr__(self, name: str) -> Any:
        return lambda: self.calls.append(name)


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer()
    report.print_training_update("xla:0", 7, torch.tensor(0.5), 10.0, 20.0, epoch=2, summary_writer=writer)
    report.print_test_update("xla:0", 98.765, epoch=2)
    training, test = capsys.readouterr().out.splitlines()
    time = r"time=\d\d:\d\d:\d\d"
    assert re.fullmatch(rf"training device=CPU:0/0 epoch=2 step=7 loss=0\.50000 rate=10\.00 global_rate=20\.00 {time}", training)
    assert re.fullmatch(rf"test device=CPU:0/0 epoch=2 accuracy=98\.77 {time}", test)
    assert writer.scalars == {"rate": (10.0, 7), "global_rate": (20.0, 7)}
    assert re.fullmatch(r"\d{4}", report.now("%Y"))


def test_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    assert report.get_summary_writer(None) is None and report.get_summary_writer("") is None
    monkeypatch.setattr("torch_xla.core.xla_model.is_master_ordinal", lambda: False)
    assert report.get_summary_writer("somewhere") is None
    report.write_to_summary(None, 1, {"x": 1.0}, True)
    report.close_summary_writer(None)
    writer = Writer()
    (torch.ones(2).to("xla") * 2).cpu()
    report.write_to_summary(writer, 3, {"accuracy": 0.5}, write_xla_metrics=True)
    assert writer.scalars["accuracy"] == (0.5, 3) and writer.scalars["counter/ExecuteComputation"][0] >= 1
    assert any(name.startswith("metric/") for name in writer.scalars)
    report.close_summary_writer(writer)
    assert writer.calls == ["flush", "close"]


def test_a_failing_replica_ends_its_process(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []
    report.mp_test(seen.append)(3)
    assert seen == [3]
    with pytest.raises(SystemExit) as ended:
        report.mp_test(lambda index: 1 // index)(0)
    assert ended.value.code == 21 and "ZeroDivisionError" in capfd.readouterr().err

"""Tensors of two runs, saved and compared."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import torch_xla.runtime as xr
from torch_xla.debug import model_comparator as mc


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No folder is set."""
    monkeypatch.delenv("MODELCMP_SAVEDIR", raising=False)
    mc.configure(None)
    yield
    mc.configure(None)


def run(folder: Path, device: str, damage: float = 0.0) -> None:
    """Two steps of a small model whose tensors are saved in `folder`."""
    mc.configure(folder)
    weight = (torch.arange(6.0).reshape(2, 3) / 7).to(device).requires_grad_()
    for _ in range(2):
        out = torch.tanh(weight.t() @ weight)
        out.sum().backward()
        assert weight.grad is not None
        mc.save("layer.1/out", out)
        mc.save("grad", weight.grad[1] + damage)


def test_a_run_on_the_device_is_like_one_on_the_cpu(tmp_path: Path) -> None:
    run(tmp_path / "cpu", "cpu")
    run(tmp_path / "xla", "xla")
    names = ["grad.0.0.pt", "grad.1.0.pt", "layer.1%2Fout.0.0.pt", "layer.1%2Fout.1.0.pt"]
    assert sorted(path.name for path in (tmp_path / "xla").iterdir()) == names
    assert mc.compare(tmp_path / "cpu", tmp_path / "xla") == ""


def test_a_difference_names_tensor_step_and_elements(tmp_path: Path) -> None:
    run(tmp_path / "a", "cpu")
    run(tmp_path / "b", "cpu")
    torch.save(torch.tensor([1.0, 2.0, 3.0]), tmp_path / "a" / "grad.1.0.pt")
    torch.save(torch.tensor([1.0, 2.5, 3.0]), tmp_path / "b" / "grad.1.0.pt")
    assert mc.compare(tmp_path / "a", tmp_path / "b") == (
        "grad, step 1, replica 0:\n  1 of 3 elements differ, by up to 0.5\n    [1]: 2.0 and 2.5\n"
    )
    assert mc.compare(tmp_path / "a", tmp_path / "b", atol=0.6) == mc.compare(tmp_path / "a", tmp_path / "b", rtol=0.3) == ""


def test_a_tensor_that_only_one_run_saved(tmp_path: Path) -> None:
    for name in ("a", "b"):
        mc.configure(tmp_path / name)
        mc.save("x", torch.ones(1), step=7)
    mc.save("y", torch.ones(1), step=12)
    assert mc.compare(tmp_path / "a", tmp_path / "b") == f"y, step 12, replica 0:\n  only in {tmp_path / 'b'}\n"


def test_files_hold_the_tensor_itself_and_no_more(tmp_path: Path) -> None:
    mc.configure(str(tmp_path))
    mc.save("part", torch.arange(100_000.0).to("xla")[:3], step=4)
    mc.save("host", torch.arange(100_000.0)[:3], step=4)
    for name in ("part", "host"):
        path = tmp_path / f"{name}.4.0.pt"
        assert torch.load(path, weights_only=True).tolist() == [0.0, 1.0, 2.0] and path.stat().st_size < 10_000


def test_where_tensors_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mc.save("nowhere", torch.ones(1))
    monkeypatch.setenv("MODELCMP_SAVEDIR", str(tmp_path / "variable"))
    mc.save("x", torch.ones(1))
    mc.configure(tmp_path / "configured")
    thread = threading.Thread(target=lambda: mc.save("x", torch.ones(1)))
    thread.start()
    thread.join()
    monkeypatch.setattr(xr, "global_ordinal", lambda: 3)
    mc.save("x", torch.ones(1))
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.pt"))
    assert found == ["configured/x.0.0.pt", "configured/x.0.3.pt", "variable/x.0.0.pt"], "each replica counts its steps"


def test_names_and_steps_that_are_none(tmp_path: Path) -> None:
    mc.configure(tmp_path)
    for name, step in (("", 0), ("x", -1)):
        with pytest.raises(ValueError, match="a name and a step of at least 0"):
            mc.save(name, torch.ones(1), step)
    assert list(tmp_path.iterdir()) == []


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (torch.tensor([1.0, NAN, INF]), torch.tensor([1.0, NAN, INF]), ""),
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, 2.0]), "1 of 2 elements differ, by up to inf\n  [1]: nan and 2.0\n"),
        (torch.tensor([INF]), torch.tensor([-INF]), "1 of 1 elements differ, by up to inf\n  [0]: inf and -inf\n"),
        (torch.tensor(3.0), torch.tensor(1.0), "1 of 1 elements differ, by up to 2\n  []: 3.0 and 1.0\n"),
        (torch.tensor([1, 2]), torch.tensor([1, 4]), "1 of 2 elements differ, by up to 2\n  [1]: 2 and 4\n"),
        (torch.tensor([True]), torch.tensor([False]), "1 of 1 elements differ, by up to 1\n  [0]: 1 and 0\n"),
        (torch.tensor([1 + 1j]), torch.tensor([1 - 1j]), "1 of 1 elements differ, by up to 2\n  [0]: (1+1j) and (1-1j)\n"),
        (torch.ones(2), torch.ones(3), "shapes [2] and [3]\n"),
        (torch.ones(2), torch.ones(2, dtype=torch.bfloat16), "dtypes torch.float32 and torch.bfloat16\n"),
        (torch.ones(1, dtype=torch.int32), torch.ones(1), "dtypes torch.int32 and torch.float32\n"),
        (torch.ones(0), torch.ones(0), ""),
    ],
)
def test_how_tensors_differ(first: torch.Tensor, second: torch.Tensor, expected: str) -> None:
    assert mc.compare_tensors(first, second) == expected


def test_so_many_elements_are_shown() -> None:
    expected = mc.compare_tensors(torch.zeros(5, 8), torch.ones(5, 8)).splitlines()
    assert expected[0] == "40 of 40 elements differ, by up to 1" and len(expected) == 1 + 25 + 1 and expected[-1] == "  ..."
    assert mc.compare_tensors(torch.zeros(2), torch.ones(2), max_diffs=2).splitlines()[1:] == ["  [0]: 0.0 and 1.0", "  [1]: 0.0 and 1.0"]


def test_files_and_folders_that_cannot_be_compared(tmp_path: Path) -> None:
    torch.save([1], tmp_path / "list.pt")
    torch.save(threading.Thread, tmp_path / "code.pt")
    (tmp_path / "text.pt").write_text("no tensor", encoding="utf-8")
    (tmp_path / "empty.pt").write_bytes(b"")
    for name in ("list", "code", "text", "empty"):
        with pytest.raises(ValueError, match=f"{name}.pt holds"):
            mc.tensor_file_compare(tmp_path / f"{name}.pt", tmp_path / f"{name}.pt")
    with pytest.raises(FileNotFoundError):
        mc.tensor_file_compare(tmp_path / "absent.pt", tmp_path / "absent.pt")
    with pytest.raises(ValueError, match="holds no tensors that model_comparator.save wrote"):
        mc.compare(tmp_path, tmp_path)


def test_signature() -> None:
    parameters = inspect.signature(mc.compare).parameters
    assert {name: parameter.default for name, parameter in parameters.items() if parameter.default is not parameter.empty} == {
        "rtol": 1e-5,
        "atol": 1e-8,
        "max_diffs": 25,
    }


def test_as_a_command(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", 1.5)):
        mc.configure(tmp_path / name)
        mc.save("x", torch.tensor(value), step=0)
    (tmp_path / "c").mkdir()
    command = [sys.executable, "-m", "torch_xla.debug.model_comparator", "a", "b"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path)
    expected = "x, step 0, replica 0:\n  1 of 1 elements differ, by up to 0.5\n    []: 1.0 and 1.5\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, expected, "")

    def called(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(mc.main, [str(argument) for argument in arguments])
        return result.exit_code, result.output

    assert called(tmp_path / "a", tmp_path / "b", "--atol", 1) == (0, "")
    code, said = called(tmp_path / "a", tmp_path / "c")
    assert code == 2 and "c holds no tensors that model_comparator.save wrote" in said
    assert called(tmp_path / "a", tmp_path / "absent")[0] == called(tmp_path / "a")[0] == 2

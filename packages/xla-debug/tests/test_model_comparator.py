"""Tensors of two runs, saved and compared."""

from __future__ import annotations

import inspect
import math
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import forked_python
import pytest
import torch
from click.testing import CliRunner

from torch_xla.debug import model_comparator as mc
from xla_core.abi import job


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
    monkeypatch.setattr(job, "ordinal", lambda: 3)
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


Damage = Callable[[bytes, random.Random], bytes]
DAMAGES: dict[str, Damage] = {
    "flip": lambda data, chosen: _flipped(data, chosen.randrange(len(data)), chosen.randrange(8)),
    "truncate": lambda data, chosen: data[: chosen.randrange(len(data))],
    "extend": lambda data, chosen: data + chosen.randbytes(chosen.randrange(1, 100)),
}


def _flipped(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


@pytest.mark.parametrize("times", [40, pytest.param(2000, marks=pytest.mark.long)])
@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damage_compares_other_numbers(tmp_path: Path, damage: str, times: int) -> None:
    """It is refused with the file's name, or the numbers are those that were saved."""
    for name in ("a", "b"):
        mc.configure(tmp_path / name)
        mc.save("x", torch.arange(40.0), step=0)
    file = tmp_path / "a" / "x.0.0.pt"
    whole, chosen = file.read_bytes(), random.Random(4)
    refused = 0
    for _ in range(times):
        file.write_bytes(DAMAGES[damage](whole, chosen))
        try:
            assert mc.compare(tmp_path / "a", tmp_path / "b") == ""
        except ValueError as error:
            assert str(file) in str(error)
            refused += 1
    assert refused > times // 2


def test_each_bit_of_the_numbers_counts(tmp_path: Path) -> None:
    """torch.load alone would not notice: it looks at no checksums."""
    mc.configure(tmp_path)
    mc.save("x", torch.arange(1.0, 5.0), step=0)
    file = tmp_path / "x.0.0.pt"
    whole = file.read_bytes()
    start = whole.index(torch.arange(1.0, 5.0).numpy().tobytes())
    for place in range(start, start + 16):
        file.write_bytes(_flipped(whole, place, place % 8))
        assert torch.load(file, weights_only=True).tolist() != [1.0, 2.0, 3.0, 4.0]
        with pytest.raises(ValueError, match="x.0.0.pt is damaged"):
            mc.tensor_file_compare(file, file)


def test_files_in_each_others_place(tmp_path: Path) -> None:
    mc.configure(tmp_path)
    for name in ("x", "y"):
        mc.save(name, torch.ones(3), step=0)
    (tmp_path / "x.0.0.pt").rename(tmp_path / "y.0.0.pt")
    with pytest.raises(ValueError, match="y.0.0.pt was saved as x.0.0.pt"):
        mc.compare(tmp_path, tmp_path)


def test_files_of_other_programs_have_no_checksum(tmp_path: Path) -> None:
    torch.save(torch.ones(3), tmp_path / "x.0.0.pt")
    assert mc.compare(tmp_path, tmp_path) == ""


@pytest.mark.parametrize("made", ["pipe", "zero", "folder", "link"])
def test_what_is_no_file_is_refused(tmp_path: Path, made: str) -> None:
    mc.configure(tmp_path / "a")
    mc.save("x", torch.ones(3), step=0)
    (tmp_path / "b").mkdir()
    file = tmp_path / "b" / "x.0.0.pt"
    if made == "pipe":
        os.mkfifo(file)
    elif made == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero" if made == "zero" else file.name)
    with pytest.raises(OSError, match="x.0.0.pt"):
        mc.compare(tmp_path / "a", tmp_path / "b")
    result = CliRunner().invoke(mc.main, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert result.exit_code == 2 and "x.0.0.pt" in result.output


KILLED = """
import os, signal, sys
import torch
from xla_core.base import files
from xla_debug import model_comparator

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

model_comparator.configure(sys.argv[1])
model_comparator.save("x", torch.ones(1000), step=0)
for _ in range(20):
    child = os.fork()
    if not child:
        files.Path.replace = die
        model_comparator.save("x", torch.zeros(1000), step=0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


def test_a_killed_save_leaves_the_earlier_file(tmp_path: Path) -> None:
    forked_python.run([sys.executable, "-c", KILLED, str(tmp_path)], check=True, timeout=300)
    assert torch.equal(torch.load(tmp_path / "x.0.0.pt", weights_only=True), torch.ones(1000)) and len(list(tmp_path.iterdir())) == 2
    assert mc.compare(tmp_path, tmp_path) == "", "what is half saved has another name"
    mc.configure(tmp_path)
    mc.save("x", torch.zeros(3), step=0)
    assert [path.name for path in tmp_path.iterdir()] == ["x.0.0.pt"]


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
    done = forked_python.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path)
    expected = "x, step 0, replica 0:\n  1 of 1 elements differ, by up to 0.5\n    []: 1.0 and 1.5\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, expected, "")

    def called(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(mc.main, [str(argument) for argument in arguments])
        return result.exit_code, result.output

    assert called(tmp_path / "a", tmp_path / "b", "--atol", 1) == (0, "")
    code, said = called(tmp_path / "a", tmp_path / "c")
    assert code == 2 and "c holds no tensors that model_comparator.save wrote" in said
    assert called(tmp_path / "a", tmp_path / "absent")[0] == called(tmp_path / "a")[0] == 2

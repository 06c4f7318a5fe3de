"""Steps exported for a target: who has such devices compiles nothing, and whatever is wrong with the executables is one warning.

The CPU is the target here, which needs no other compiler; those of a TPU and a GPU are marked `targets`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import shutil
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_xla
from xla_core.base import metrics, owned_files, private_jax
from xla_core.base.errors import ExecutionError, LoweringError, UnknownDeviceError
from xla_core.features.export.steps import step_executables

Run = Callable[..., str]

PROGRAM = Path(__file__).parent / "programs" / "target_step.py"


def ran(run: Run, *arguments: str, **variables: str) -> str:
    """What a process prints that runs the program."""
    code = f"import runpy, sys; sys.argv = {['target_step.py', *arguments]!r}; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    return run(code, **variables)


def read(run: Run, folder: Path, devices: str, **variables: str) -> tuple[list[list[float]], int, list[str]]:
    """What a process says that loads both steps on each device: losses, how many programs it compiled, and warnings."""
    losses, compiled, warned = json.loads(ran(run, "read", str(folder), devices, **variables))
    return losses, compiled, warned


@pytest.fixture(scope="module")
def on_cpu() -> list[float]:
    """The losses of the step after the export, on the CPU of PyTorch."""
    program = runpy.run_path(str(PROGRAM))
    train = program["trainer"]("cpu")
    losses = {number: train(program["batch"](number)).item() for number in (*program["BEFORE"], *program["AFTER"])}
    return [losses[number] for number in program["AFTER"]]


STEP_COMPILED = "*jit_run.before_optimizations.txt"
"""What XLA writes down if it compiles the program of a step."""


def dumping(folder: Path) -> str:
    """XLA_FLAGS with which XLA writes down each program that it compiles, in this folder."""
    return f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={folder}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Path:
    """A folder with a step of values and one without, exported for one CPU by another process."""
    folder = tmp_path_factory.mktemp("made")
    ran(run, "export", str(folder), "cpu:1", XLA_FLAGS=dumping(folder / "dumped"))
    return folder


def test_another_process_compiles_nothing_and_goes_on_as_the_cpu(made: Path, run: Run, on_cpu: list[float]) -> None:
    dumped = made / "dumped"
    assert list(dumped.glob(STEP_COMPILED))
    shutil.rmtree(dumped)
    losses, compiled, warned = read(run, made, "0", XLA_FLAGS=dumping(dumped))
    assert (compiled, warned) == (0, [])
    np.testing.assert_allclose(losses, [on_cpu, on_cpu], rtol=1e-4)
    assert list(dumped.iterdir()) and not list(dumped.glob(STEP_COMPILED))


@pytest.mark.long
def test_another_number_of_devices_and_other_flags_are_misses(made: Path, run: Run, on_cpu: list[float]) -> None:
    losses, compiled, warned = read(run, made, "1", CPU_NUM_DEVICES="2")
    assert compiled == len(warned) == 2
    assert all("for cpu:1: number of devices is 1 there and 2 here; XLA_FLAGS is another" in text for text in warned)
    np.testing.assert_allclose(losses, [on_cpu, on_cpu], rtol=1e-4)


@pytest.mark.long
def test_a_target_of_four_is_for_each_of_them(tmp_path: Path, run: Run, on_cpu: list[float]) -> None:
    ran(run, "export", str(tmp_path), "cpu:4", CPU_NUM_DEVICES="4")
    losses, compiled, warned = read(run, tmp_path, "0,3", CPU_NUM_DEVICES="4")
    assert (compiled, warned) == (0, [])
    np.testing.assert_allclose(losses, [on_cpu] * 4, rtol=1e-4)


def counting(path: Path, target: Any = "cpu:1", by: int = 1) -> None:
    """Export a step that adds its argument to a counter of three, `by` times, and returns twice the counter."""
    counter = torch.zeros(3, device="xla")

    def step(x: Tensor) -> Tensor:
        counter.add_(x * by)
        return counter * 2

    captured = torch_xla.compile(step, capture=True)
    for _ in range(3):
        captured(torch.ones(3, device="xla"))
    torch_xla.export_step(captured, path, target=target)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "step"
    counting(path)
    return path


@pytest.fixture
def path(exported: Path, tmp_path: Path) -> Path:
    """A copy of the exported step for one test."""
    for file in exported.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    beside(tmp_path / exported.name).chmod(0o644)
    return tmp_path / exported.name


def beside(path: Path) -> Path:
    return Path(step_executables.path_beside(path))


def outcome(path: Path, **options: Any) -> tuple[list[str], int]:
    """The warnings of loading the step, and how many programs its calls compile; they give the right numbers."""
    before = metrics.counter("UncachedCompile")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step = torch_xla.load_step(path, **options)
    assert [step(torch.ones(3)).tolist() for _ in range(2)] == [[8.0] * 3, [10.0] * 3]
    return [str(each.message) for each in caught], metrics.counter("UncachedCompile") - before


def missed(path: Path, why: str) -> None:
    """The executables are not used, with one warning that says why; the step is compiled anew."""
    (warning,), compiled = outcome(path)
    assert compiled == 1 and why in warning and warning.startswith(f"{beside(path)} is not used"), warning
    assert "\n" not in warning


def test_executables_are_used_or_left_alone(path: Path) -> None:
    assert outcome(path) == ([], 0)
    assert outcome(path, executables=False) == ([], 1)
    beside(path).unlink()
    missed(path, "it is not there")


def test_without_a_target_there_is_one_file(tmp_path: Path) -> None:
    counting(tmp_path / "step", target=None)
    assert os.listdir(tmp_path) == ["step"] and outcome(tmp_path / "step") == ([], 1)


def test_a_target_may_be_a_value(tmp_path: Path) -> None:
    with torch_xla.target("cpu:1") as target:
        pass
    counting(tmp_path / "step", target=target)
    assert outcome(tmp_path / "step") == ([], 0)
    with pytest.raises(UnknownDeviceError, match="there is no target 'v9:2x2'"):
        counting(tmp_path / "other", target="v9:2x2")
    assert sorted(os.listdir(tmp_path)) == ["step", "step.executable"]


def test_every_cut_and_every_flipped_byte_is_a_miss(path: Path) -> None:
    whole = beside(path).read_bytes()
    for size in (*range(0, 60, 7), len(whole) // 2, len(whole) - 1):
        beside(path).write_bytes(whole[:size])
        missed(path, "it is ")
    start = 48 + int.from_bytes(whole[8:16], "little")
    for place in (*range(0, 48, 5), *range(48, start, 401), *range(start, len(whole), 2003), len(whole) - 1):
        beside(path).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        missed(path, "it is ")


def test_files_of_others_are_misses_and_nothing_of_them_runs(path: Path, tmp_path: Path) -> None:
    unpickled = tmp_path / "unpickled"
    for content in (b"", b"PK\x03\x04" + bytes(100), path.read_bytes(), f"cos\nmkdir\n(S'{unpickled}'\ntR.".encode()):
        beside(path).write_bytes(content)
        missed(path, "it is no file of executables: it does not begin with XLA_EXEC")
    assert not unpickled.exists()
    beside(path).unlink()
    os.mkfifo(beside(path))  # is not waited for
    missed(path, "it is not a regular file")
    beside(path).unlink()
    beside(path).mkdir()
    missed(path, "it is not a regular file")


def test_what_others_own_or_may_write_is_a_miss(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside(path).chmod(0o664)
    missed(path, "it is writable by others (mode 664)")
    beside(path).chmod(0o644)
    link = beside(path).with_name("elsewhere")
    beside(path).rename(link)
    beside(path).symlink_to(link)
    assert outcome(path) == ([], 0), "as clusters mount files"
    status = os.stat_result([0o100644, 0, 0, 1, 4711, 0, 0, 0, 0, 0])
    with pytest.raises(PermissionError, match="it belongs to user 4711, not to this one"):
        owned_files.check_owner(status, "it")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    owned_files.check_owner(status, "it")
    owned_files.check_owner(os.stat_result([0o100644, 0, 0, 1, 0, 0, 0, 0, 0, 0]), "root's")


def test_executables_of_another_step_are_a_miss(path: Path, tmp_path: Path) -> None:
    """As when a process ends between the two files, or a backup mixes them up."""
    counting(tmp_path / "other", by=2)
    (tmp_path / "other.executable").replace(beside(path))
    missed(path, "it was compiled from other programs than those of this step")


def rewritten(path: Path, change: Callable[[Any], Any], executable: bytes | None = None) -> None:
    """Give the file of executables another description, or executable, with the right checksums."""
    whole = beside(path).read_bytes()
    end = 48 + int.from_bytes(whole[8:16], "little")
    parts = whole[end:] if executable is None else executable
    about = change(json.loads(whole[48:end]))
    about["programs"][0]["value"] = {"offset": 0, "size": len(parts), "sha256": sha256(parts).hexdigest()}
    text = json.dumps(about).encode()
    beside(path).write_bytes(whole[:8] + len(text).to_bytes(8, "little") + sha256(text).digest() + text + parts)


@pytest.mark.parametrize(
    ("name", "there", "why"),
    [
        ("jaxlib", "0.9.9", f"for cpu:1: jaxlib is 0.9.9 there and {private_jax.jaxlib_version} here"),
        ("compiler", "another build", "compiler is another"),
        ("kind of device", "another cpu", "kind of device is another cpu there and cpu here"),
        ("number of devices", "8", "number of devices is 8 there and 1 here"),
        ("version of the platform", "cpu 2", "version of the platform is cpu 2 there and cpu here"),
        ("platform", "gpu", "platform is gpu there and cpu here"),
        ("processor", "x86_64 avx512", "processor is another"),
    ],
)
def test_other_versions_and_devices_are_misses(path: Path, name: str, there: str, why: str) -> None:
    rewritten(path, lambda about: {**about, "environment": {**about["environment"], name: there}})
    missed(path, why)


def test_other_formats_and_rubbish_in_a_right_envelope_are_misses(path: Path) -> None:
    whole = beside(path).read_bytes()
    for version in (2, "1", None, [1]):
        rewritten(path, lambda about, version=version: {**about, "format_version": version})
        missed(path, f"it has version {version!r} of the format, and this xla-core writes version 1")
        beside(path).write_bytes(whole)
    rewritten(path, lambda about: {**about, "environment": ["jaxlib"]})
    missed(path, "description.environment is")
    for rubbish in (b"", b"rubbish", bytes(1000), whole[-1000:]):
        rewritten(path, lambda about: about, rubbish)
        missed(path, "")
        beside(path).write_bytes(whole)
    assert outcome(path) == ([], 0)


def test_a_step_without_values_says_so_until_it_has_them(tmp_path: Path) -> None:
    torch_xla.sync()
    with torch_xla.target("cpu:1"):
        counting(tmp_path / "step", target=None)
        with pytest.raises(ExecutionError, match="nothing runs on the target cpu:1: load the step in a process that has such devices"):
            torch_xla.load_step(tmp_path / "step")
    step = torch_xla.load_step(tmp_path / "step")
    for use in (lambda: step(torch.ones(3)), step.state_dict):
        with pytest.raises(ValueError, match="the step step was captured for cpu:1, where nothing runs, so counter have no values"):
            use()
    with pytest.raises(ValueError, match="counter: in one of the states"):
        step.load_state_dict({"state": {}, "numbers": {}, "random_state": 0})
    step.load_state_dict({"state": {"counter": torch.full((3,), 5.0)}, "numbers": {}, "random_state": 0})
    assert step(torch.ones(3)).tolist() == [12.0] * 3
    assert step.state_dict()["state"]["counter"].tolist() == [6.0] * 3


COMPILERS = {"v5e:4x4": "libtpu", "h100": "jax_cuda13_plugin"}


@pytest.fixture(params=COMPILERS)
def elsewhere(request: pytest.FixtureRequest) -> str:
    """The name of a target of another machine."""
    if importlib.util.find_spec(COMPILERS[request.param]) is None:
        pytest.skip(f"needs {COMPILERS[request.param]}: hatch run targets:test")
    return str(request.param)


def trained(path: Path, target: str | None = None) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters())

    @torch_xla.compile(capture=True)
    def train(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(3):
        train(torch.ones(8, 16, device="xla"))
    torch_xla.export_step(train, path, target=target)


@pytest.mark.targets
@pytest.mark.parametrize("within", [True, False])
def test_a_target_of_another_machine_has_the_compilers_bytes(
    elsewhere: str, within: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client on this machine loads no executables, so that they are compared with what the compiler gave."""
    given: list[bytes] = []

    def compiled_bytes(*arguments: Any) -> bytes:
        given.append(private_jax.compiled_bytes(*arguments))
        return given[-1]

    monkeypatch.setattr(step_executables, "compiled_bytes", compiled_bytes)
    torch_xla.sync()
    if within:
        with torch_xla.target(elsewhere):
            trained(tmp_path / "step")
    else:
        trained(tmp_path / "step", elsewhere)
    whole = beside(tmp_path / "step").read_bytes()
    end = 48 + int.from_bytes(whole[8:16], "little")
    about = json.loads(whole[48:end])
    assert [whole[end:]] == given and b"jit_run" in given[0]
    with torch_xla.target(elsewhere) as target:
        device = target.devices[0]
    assert about["compiled_for"] == elsewhere and about["environment"]["kind of device"] == target.kind
    assert about["environment"]["number of devices"] == str(len(target.devices))
    if target.platform == "gpu":  # bytes of the TPU's compiler differ from run to run
        step = (tmp_path / "step").read_bytes()
        start = 48 + int.from_bytes(step[8:16], "little")
        code = json.loads(step[48:start])["programs"][0]["code"]
        assert given[0] == private_jax.compiled_bytes(step[start:][code["offset"] :][: code["size"]], device, {})
    with pytest.raises(ValueError, match=f"exported for {target.platform}, and this device is of cpu"):
        torch_xla.load_step(tmp_path / "step")


@pytest.mark.targets
def test_what_a_target_cannot_take_is_refused_with_its_line(elsewhere: str, tmp_path: Path) -> None:
    @torch_xla.compile(capture=True)
    def step(x: Tensor) -> Tensor:
        return x.to(torch.complex128) * 2

    for _ in range(3):
        step(torch.ones(3, device="xla"))
    if elsewhere.startswith("v5e"):
        with pytest.raises(LoweringError, match=r"test_step_executables.py:\d+ cannot be compiled for tpu: .*use torch.complex64"):
            torch_xla.export_step(step, tmp_path / "step", target=elsewhere)
        assert not os.listdir(tmp_path)
    else:
        torch_xla.export_step(step, tmp_path / "step", target=elsewhere)
        assert beside(tmp_path / "step").stat().st_size > 1000

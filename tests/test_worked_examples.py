"""The documentation's examples, run as they stand there. Those of one process are here."""

from __future__ import annotations

import io
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import forked_python
import pytest
import torch
import torch.nn as nn
import torch.optim as optim

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.experimental as experimental
import torch_xla.utils.serialization as xser
from xla_core.abi.metrics import counter, snapshot


def samples(name: str) -> int:
    found = snapshot().metrics.get(name)
    return 0 if found is None else found.total_samples


def run(code: str, **variables: str) -> str:
    """stdout of a new interpreter on CPU."""
    environment = {**os.environ, "PJRT_DEVICE": "CPU", **variables}
    done = forked_python.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def nothing_pending() -> None:
    """Each example starts with an empty step."""
    torch_xla.sync(wait=True)


def test_creating_a_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    t = torch.randn(2, 2, device=xm.xla_device())
    print(t.device)
    print(t)
    device, *text = capsys.readouterr().out.splitlines()
    assert device == "xla:0"
    number = r"-?\d+\.\d+(?:e-?\d+)?"
    assert re.fullmatch(rf"tensor\(\[\[\s*{number},\s*{number}\],\s*\[\s*{number},\s*{number}\]\], device='xla:0'\)", "\n".join(text))


def test_adding(capsys: pytest.CaptureFixture[str]) -> None:
    t0 = torch.randn(2, 2, device=xm.xla_device())
    t1 = torch.randn(2, 2, device=xm.xla_device())
    print(t0 + t1)
    assert "device='xla:0'" in capsys.readouterr().out
    torch.testing.assert_close((t0 + t1).cpu(), t0.cpu() + t1.cpu(), rtol=0, atol=0)


def test_matrix_product() -> None:
    t0 = torch.randn(2, 2, device=xm.xla_device())
    t1 = torch.randn(2, 2, device=xm.xla_device())
    torch.testing.assert_close(t0.mm(t1).cpu(), t0.cpu().mm(t1.cpu()))


def test_linear_layer() -> None:
    l_in = torch.randn(10, device=xm.xla_device())
    linear = torch.nn.Linear(10, 20).to(xm.xla_device())
    l_out = linear(l_in)
    assert l_out.shape == (20,) and l_out.device == torch.device("xla:0")
    torch.testing.assert_close(l_out.detach().cpu(), linear.cpu()(l_in.cpu()).detach())


def test_mixing_devices_is_an_error() -> None:
    l_in = torch.randn(10, device=xm.xla_device())
    linear = torch.nn.Linear(10, 20)
    with pytest.raises(RuntimeError, match=r"Input tensor is not an XLA tensor: torch\.FloatTensor"):
        linear(l_in)


class MNIST(nn.Module):
    """A small classifier of 8×8 pictures."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10), nn.LogSoftmax(dim=1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The same pictures again and again, so that the loss can only fall."""
    generator = torch.Generator().manual_seed(0)
    data, target = torch.rand(16, 1, 8, 8, generator=generator), torch.randint(0, 10, (16,), generator=generator)
    return [(data, target)] * count


def test_training_on_one_device() -> None:
    train_loader, lr, momentum = batches(12), 0.1, 0.9
    losses, compiles, marks = [], [], counter("MarkStep")

    device = xm.xla_device()
    model = MNIST().train().to(device)
    loss_fn = nn.NLLLoss()
    optimizer = optim.SGD(model.parameters(), lr=lr, momentum=momentum)

    for data, target in train_loader:
        optimizer.zero_grad()
        data = data.to(device)
        target = target.to(device)
        output = model(data)
        loss = loss_fn(output, target)
        loss.backward()

        optimizer.step()
        xm.mark_step()
        losses.append(loss)
        compiles.append(counter("UncachedCompile"))

    assert counter("MarkStep") - marks == len(train_loader)
    assert compiles[-1] == compiles[2], "optimizer state appears in step 1: no compile after step 3"
    values = [loss.item() for loss in losses]
    assert all(later < earlier for earlier, later in zip(values, values[1:], strict=False))
    assert values[-1] < 0.8 * values[0]


def test_gives_the_same_losses_as_on_cpu() -> None:
    def train(device: torch.device) -> list[float]:
        model = MNIST().train().to(device)
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for data, target in batches(5):
            optimizer.zero_grad()
            loss = nn.NLLLoss()(model(data.to(device)), target.to(device))
            loss.backward()
            optimizer.step()
            if device.type == "xla":
                torch_xla.sync()
            losses.append(loss.detach())
        return [loss.item() for loss in losses]

    assert train(torch_xla.device()) == pytest.approx(train(torch.device("cpu")), rel=1e-4)


def test_saving_and_loading(tmp_path: Path) -> None:
    path = tmp_path / "tensors.pt"
    device = xm.xla_device()

    t0 = torch.randn(2, 2, device=device)
    t1 = torch.randn(2, 2, device=device)
    tensors = (t0.cpu(), t1.cpu())
    torch.save(tensors, path)
    tensors = torch.load(path)
    t0_loaded = tensors[0].to(device)
    t1_loaded = tensors[1].to(device)

    assert t0_loaded.device == t1_loaded.device == torch.device("xla:0")
    assert torch.equal(t0_loaded, t0) and torch.equal(t1_loaded, t1)


def test_saved_state_loads_without_this_package(tmp_path: Path) -> None:
    model = MNIST().to(xm.xla_device())
    xm.save(model.state_dict(), tmp_path / "model.pt")
    code = f"""
        import sys, torch
        state = torch.load({str(tmp_path / "model.pt")!r}, weights_only=True)
        print(sorted(state), {{tensor.device.type for tensor in state.values()}}, "torch_xla" in sys.modules)
    """
    names = sorted(model.state_dict())
    assert run(code).strip() == f"{names} {{'cpu'}} False"
    fresh = MNIST()
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    fresh.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert all(torch.equal(mine, theirs.cpu()) for mine, theirs in zip(fresh.parameters(), model.parameters(), strict=True))


def test_a_state_saved_one_tensor_at_a_time_is_restored(tmp_path: Path) -> None:
    model = MNIST().to(xm.xla_device())
    xser.save(model.state_dict(), tmp_path / "model.pt")
    tensors = {file.name for file in (tmp_path / "model.pt.tensors").glob("tensor_*.pt")}
    assert tensors == {f"tensor_{number}.pt" for number in range(len(model.state_dict()))}
    fresh = MNIST()
    fresh.load_state_dict(xser.load(tmp_path / "model.pt"))
    assert all(torch.equal(mine, theirs.cpu()) for mine, theirs in zip(fresh.parameters(), model.parameters(), strict=True))


def test_a_second_process_finds_the_program(tmp_path: Path) -> None:
    code = f"""
        import torch_xla.runtime as xr
        xr.initialize_cache({str(tmp_path)!r}, readonly=False)

        import torch, torch_xla
        tensor = torch.arange(12.0).reshape(3, 4).to("xla")
        result = (tensor @ tensor.t()).softmax(dim=0)
        torch_xla.sync()
        print(result.cpu().sum().item())
        from xla_core.abi.metrics import snapshot
        print([snapshot().counters.get(name, 0) for name in ("PersistentCacheHit", "PersistentCacheMiss")])
    """
    (first, cold), (second, warm) = (run(code).splitlines() for _ in range(2))
    assert (cold, warm) == ("[0, 1]", "[1, 0]")
    assert first == second


BFLOAT16 = """
    import torch, torch_xla
    t1 = torch.tensor([1.0 + 2**-9, 1 / 3], dtype=torch.float32).to("xla")
    t2 = torch.tensor([1.0 + 2**-30, 1 / 3], dtype=torch.float64).to("xla")
    t3 = torch.tensor([1.0, 1 / 3], dtype=torch.bfloat16).to("xla")
    print(*[t.dtype for t in (t1, t2, t3, t1 + 1, t2 * 2, t1.cpu(), t2.cpu())])
    for t in (t1 + 0, t2 + 0, t3 + 0):
        back = t.cpu().double()
        kinds = [d for d in (torch.bfloat16, torch.float32) if torch.equal(back, back.to(d).double())]
        print(str((kinds + [torch.float64])[0]).removeprefix("torch."))
"""


@pytest.mark.parametrize(
    ("variables", "computed"),
    [
        ({}, ["float32", "float64", "bfloat16"]),
        ({"XLA_USE_BF16": "1"}, ["bfloat16", "bfloat16", "bfloat16"]),
        ({"XLA_DOWNCAST_BF16": "1"}, ["bfloat16", "float32", "bfloat16"]),
    ],
    ids=["none", "XLA_USE_BF16", "XLA_DOWNCAST_BF16"],
)
def test_reduced_precision_shows_in_values_only(variables: dict[str, str], computed: list[str]) -> None:
    dtypes, *kinds = run(BFLOAT16, **variables).splitlines()
    assert dtypes.split() == [f"torch.{name}" for name in "float32 float64 bfloat16 float32 float64 float32 float64".split()]
    assert kinds == computed


def test_moving_a_view_ends_its_relation() -> None:
    t = torch.arange(4.0)
    view = t[1:3]
    moved = view.to(xm.xla_device())
    moved += 10
    t.zero_()
    assert (t.tolist(), view.tolist(), moved.tolist()) == ([0.0] * 4, [0.0, 0.0], [11.0, 12.0])

    base = torch.arange(6.0).to("xla").view(2, 3)
    row = base[1]
    back = row.cpu()
    assert back.shape == (3,)
    back.fill_(-1.0)
    row += 1
    assert (base.tolist(), back.tolist()) == ([[0.0, 1.0, 2.0], [4.0, 5.0, 6.0]], [-1.0] * 3)


def test_between_two_xla_devices() -> None:
    code = """
        import torch, torch_xla
        base = torch.arange(4.0, device="xla:0")
        moved = base[1:3].to("xla:1")
        moved += 10
        base.mul_(2)
        print(moved.device, base.tolist(), moved.tolist())
    """
    assert run(code, CPU_NUM_DEVICES="2").strip() == "xla:1 [0.0, 2.0, 4.0, 6.0] [11.0, 12.0]"


def test_direct_saving_remembers_the_device(tmp_path: Path) -> None:
    t = torch.arange(4.0, device=xm.xla_device())
    torch.save(t, tmp_path / "t.pt")
    loaded = torch.load(tmp_path / "t.pt")
    assert loaded.device == torch.device("xla:0") and torch.equal(loaded, t)
    assert torch.load(tmp_path / "t.pt", map_location="cpu").device.type == "cpu"


def test_loading_fails_where_the_device_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "t.pt")
    run(f"import torch, torch_xla; torch.save(torch.ones(3, device='xla:1'), {path!r})", CPU_NUM_DEVICES="2")
    with pytest.raises(RuntimeError):
        torch.load(path)
    assert torch.load(path, map_location="cpu").tolist() == [1.0, 1.0, 1.0]


def test_nothing_runs_before_it_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    a = torch.arange(6.0).reshape(2, 3).to(xm.xla_device())
    before = samples("ExecuteTime")
    b = (a * 2).relu().t() @ a
    c = b.sum(dim=0)
    assert samples("ExecuteTime") == before
    print(c)
    assert capsys.readouterr().out.startswith("tensor([")
    xm.wait_device_ops()
    assert samples("ExecuteTime") == before + 1
    d = c + 1
    assert samples("ExecuteTime") == before + 1
    torch_xla.sync(wait=True)
    assert counter("ExecuteComputation") >= 2 and d.tolist() == (c.cpu() + 1).tolist()


def test_memory_info() -> None:
    info = xm.get_memory_info()
    assert isinstance(info["bytes_used"], int) and isinstance(info["bytes_limit"], int)


def test_optimizer_step_with_the_optimizer_alone() -> None:
    class Counting(optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            return "stepped"

    model = nn.Linear(2, 1).to(xm.xla_device())
    optimizer = Counting(model.parameters(), lr=0.5)
    model(torch.ones(2, device=xm.xla_device())).sum().backward()
    before = model.bias.item()
    assert xm.optimizer_step(optimizer) == "stepped"
    assert model.bias.item() == pytest.approx(before - 0.5)


def test_step_closures_print_in_order_and_add_no_execution(capsys: pytest.CaptureFixture[str]) -> None:
    def print_loss(step: int, loss: torch.Tensor) -> None:
        print(f"step {step}: {loss.item():.3f}")

    device = xm.xla_device()
    model = MNIST().train().to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    torch_xla.sync(wait=True)
    executions = counter("ExecuteComputation")
    for step, (data, target) in enumerate(batches(4)):
        optimizer.zero_grad()
        loss = nn.NLLLoss()(model(data.to(device)), target.to(device))
        loss.backward()
        optimizer.step()
        xm.add_step_closure(print_loss, args=(step, loss))
        xm.mark_step()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"step {number}" for number in range(4)]
    assert counter("ExecuteComputation") - executions == 4


def test_eager_mode_and_compile() -> None:
    def step_fn(model: nn.Module, optimizer: optim.Optimizer, data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = nn.NLLLoss()(model(data), target)
        loss.backward()
        optimizer.step()
        return loss

    def train(step: Any) -> list[float]:
        model = MNIST().train().to("xla")
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        return [step(model, optimizer, data.to("xla"), target.to("xla")).item() for data, target in batches(4)]

    lazy = train(step_fn)
    experimental.eager_mode(True)
    try:
        assert train(step_fn) == pytest.approx(lazy, rel=1e-4)
        compiled = experimental.compile(step_fn)
        before = samples("CompileTime") - samples("EagerOpCompileTime")
        assert train(compiled) == pytest.approx(lazy, rel=1e-4)
        assert samples("CompileTime") - samples("EagerOpCompileTime") == before, "the program of the lazy steps"
    finally:
        experimental.eager_mode(False)


def test_stablehlo_of_an_inference_graph() -> None:
    from jax.extend.mlir.dialects import stablehlo

    model = MNIST().eval().to(xm.xla_device())
    output = model(batches(1)[0][0].to(xm.xla_device()))
    executions = counter("ExecuteComputation")
    text = xm.get_stablehlo([output])
    bytecode = xm.get_stablehlo_bytecode([output])
    assert counter("ExecuteComputation") == executions, "still pending"
    assert "stablehlo.dot_general" in text
    assert stablehlo.serialize_portable_artifact_str(text, stablehlo.get_current_version()), "the text parses"
    assert isinstance(bytecode, bytes) and bytecode
    assert output.shape == (16, 10) and counter("ExecuteComputation") == executions
    buffer = io.BytesIO()
    torch.save(output.detach().cpu(), buffer)
    assert counter("ExecuteComputation") == executions + 1

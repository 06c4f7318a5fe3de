"""Captured steps as files: what goes on from one, in this process, in another, and by JAX alone, is what the original does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from jax.extend.mlir.dialects import stablehlo as dialect
from torch import Tensor, nn

import torch_xla
from torch_xla.amp import syncfree
from xla_core.base.errors import CaptureError, StepFileError

PAGE = Path(__file__).resolve().parents[5] / "docs" / "export.md"
Step = Callable[..., Any]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def trainer(device: str, dropout: float = 0.0) -> tuple[Step, torch.optim.Optimizer, nn.Module]:
    """A step of Adam over a small net with batch norm; not captured."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.ReLU(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def train(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train, optimizer, model


def leaves(nested: Any) -> list[Any]:
    found = torch.utils._pytree.tree_leaves(nested)
    return [each.detach().cpu() if isinstance(each, Tensor) else each for each in found]


def test_another_process_goes_on_with_the_losses_of_the_original_and_of_the_cpu(tmp_path: Path, run: Callable[..., str]) -> None:
    train, optimizer, model = trainer("xla")
    on_cpu, cpu_optimizer, _ = trainer("cpu")
    captured = torch_xla.compile(train, capture=True)
    batches = [numbers(6, 4, seed=seed) for seed in range(10)]
    for x in batches[:4]:
        captured(x.to("xla"))
        on_cpu(x)
    torch_xla.export_step(captured, tmp_path / "step")
    np.save(tmp_path / "x.npy", torch.stack(batches[4:]).numpy())
    expected, reference = [], []
    for number, x in enumerate(batches[4:]):
        for each in (optimizer, cpu_optimizer):
            each.param_groups[0]["lr"] = 0.02 / (number + 1)
        expected.append(captured(x.to("xla")).item())
        reference.append(on_cpu(x).item())
    code = f"""
import numpy, torch, torch_xla
step = torch_xla.load_step({str(tmp_path / "step")!r})
for number, x in enumerate(numpy.load({str(tmp_path / "x.npy")!r})):
    step.numbers["optimizer.param_groups.0.lr"] = 0.02 / (number + 1)
    print(step(torch.from_numpy(x).to("xla")).item())
print(step.state_dict()["state"]["model.1.running_mean"].sum().item())
"""
    *losses, mean = map(float, run(code).split())
    assert losses == expected
    assert mean == model[1].running_mean.sum().item()
    np.testing.assert_allclose(losses, reference, rtol=1e-4)


def test_jax_alone_trains_on(tmp_path: Path, run: Callable[..., str]) -> None:
    """The program of the page, in a process that cannot import torch: dropout, schedules and step counts included."""
    train, optimizer, _ = trainer("xla", dropout=0.5)
    captured = torch_xla.compile(train, capture=True)
    batches = [numbers(6, 4, seed=seed) for seed in range(7)]
    for x in batches[:4]:
        captured(x.to("xla"))
    torch_xla.export_step(captured, tmp_path / "step")
    np.save(tmp_path / "x.npy", torch.stack(batches[4:]).numpy())
    optimizer.param_groups[0]["lr"] = 0.1
    expected = [captured(x.to("xla")).item() for x in batches[4:]]
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    (first,) = [block for block in blocks if "def load(" in block]
    (second,) = [block for block in blocks if "def load_step(" in block]
    code = f"""
import sys
for name in ("torch", "torch_xla", "xla_core"):
    sys.modules[name] = None
{first}
{second.partition("run, state = load_step(file)")[0]}
run, state = load_step({str(tmp_path / "step")!r})
state[1]["optimizer.param_groups.0.lr"] = 0.1
for x in np.load({str(tmp_path / "x.npy")!r}):
    (loss,), state = run(state, [x])
    print(float(loss))
"""
    np.testing.assert_allclose([float(line) for line in run(code).split()], expected, rtol=1e-5)


def mixed_precision() -> tuple[Step, list[Tensor]]:
    """bf16 by autocast, a bf16 layer, momentum, and a batch norm."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)).to("xla")
    head = nn.Linear(3, 2, dtype=torch.bfloat16).to("xla")
    optimizer = syncfree.SGD([*model.parameters(), *head.parameters()], lr=0.05, momentum=0.9)

    def step(x: Tensor) -> dict[str, Any]:
        optimizer.zero_grad()
        with torch.autocast("xla", torch.bfloat16):
            logits = head(model(x))
        loss = F.mse_loss(logits.float(), x[:, :2])
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "logits": [logits.detach(), logits.detach().t()], "of": ("a step", None, 0.5)}

    return step, [numbers(5, 4, seed=seed).to("xla") for seed in range(8)]


def decoding() -> tuple[Step, list[Tensor]]:
    """A static cache in a list, a position that counts, and a cache that the caller gives and the step writes to."""
    torch.manual_seed(2)
    embed = nn.Embedding(20, 6).to("xla").requires_grad_(False)
    cache = [torch.zeros(16, 6, device="xla"), torch.zeros((), dtype=torch.int64, device="xla")]

    def step(token: Tensor) -> tuple[Tensor, Tensor]:
        hidden = embed(token)
        cache[0].index_copy_(0, cache[1][None], hidden[None])
        cache[1] += 1
        return (embed.weight @ cache[0].sum(0) / cache[1]).argmax(), cache[0]

    return step, [torch.tensor(token, device="xla") for token in (3, 1, 4, 1, 5, 9, 2)]


def accumulation() -> tuple[Step, list[Tensor]]:
    """Gradients that outlive the call."""
    torch.manual_seed(3)
    weight = torch.randn(4, 4, device="xla").requires_grad_()

    def step(x: Tensor) -> Tensor:
        (x @ weight).square().mean().backward()
        assert weight.grad is not None
        return weight.grad.norm()

    return step, [numbers(5, 4, seed=seed).to("xla") for seed in range(8)]


def assert_equal(found: Any, expected: Any) -> None:
    """Tensors may differ in the last bit: XLA may fuse a program that was loaded in another way."""
    if isinstance(expected, Tensor):
        torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=1e-6, atol=1e-7)
    else:
        assert found == expected


@pytest.mark.parametrize("made", [mixed_precision, decoding, accumulation], ids=lambda made: made.__name__)
def test_calls_and_state_are_those_of_the_captured_step(made: Callable[[], tuple[Step, list[Tensor]]], tmp_path: Path) -> None:
    step, inputs = made()
    captured = torch_xla.compile(step, capture=True)
    for x in inputs[:4]:
        captured(x)
    torch_xla.export_step(captured, tmp_path / "step")
    loaded = torch_xla.load_step(tmp_path / "step")
    expected = [leaves(captured(x)) for x in inputs[4:]]
    for call, x in enumerate(inputs[4:]):
        found = loaded(x)
        if call == 1:  # a state that was loaded goes on as well
            later = torch_xla.load_step(tmp_path / "step")
            later.load_state_dict(
                {**loaded.state_dict(), "state": {name: each.cpu() for name, each in loaded.state_dict()["state"].items()}}
            )
            loaded = later
        for one, other in zip(leaves(found), expected[call], strict=True):
            assert_equal(one, other)
    torch_xla.export_step(captured, tmp_path / "later")
    final, state = torch_xla.load_step(tmp_path / "later").state_dict(), loaded.state_dict()
    assert final["numbers"] == state["numbers"] and final["random_state"] == state["random_state"]
    assert final["state"].keys() == state["state"].keys()
    for name, value in final["state"].items():
        assert_equal(state["state"][name], value)


def test_arguments_are_written_to_and_returned_as_they_are(tmp_path: Path) -> None:
    def step(cache: dict[str, Tensor], x: Tensor, *, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        cache["sums"].add_(x.sum(0))
        return x, cache["sums"][1:], x * scale

    captured = torch_xla.compile(step, capture=True)
    x = numbers(3, 4).to("xla")
    for _ in range(3):
        captured({"sums": torch.zeros(4, device="xla")}, x, scale=0.5)
    torch_xla.export_step(captured, tmp_path / "step")
    loaded = torch_xla.load_step(tmp_path / "step")
    sums = torch.ones(4, device="xla")
    same, part, scaled = loaded({"sums": sums}, x, scale=0.5)
    assert same is x
    torch.testing.assert_close(sums.cpu(), 1 + numbers(3, 4).sum(0))
    torch.testing.assert_close(part.cpu(), sums.cpu()[1:])
    torch.testing.assert_close(scaled.cpu(), numbers(3, 4) / 2)
    with pytest.raises(ValueError, match=re.escape("takes ({'sums': float32[4]}, float32[3, 4], scale=2.0); it takes")):
        loaded({"sums": sums}, x, scale=2.0)
    with pytest.raises(ValueError, match="shares data with one that the step writes to"):
        data = torch.zeros(16, device="xla")
        loaded({"sums": data[:4]}, data[4:].view(3, 4), scale=0.5)


@pytest.mark.parametrize("capturable", [True, False])
def test_training_with_several_batch_sizes(capturable: bool, tmp_path: Path) -> None:
    """The last batch of an epoch is smaller; both programs count the same steps, on the device or on the CPU."""
    made = []
    for device in ("xla", "cpu"):
        weight = numbers(4, 1).to(device).requires_grad_()
        optimizer = torch.optim.Adam([weight], lr=0.1, capturable=capturable and device == "xla")

        def train(x: Tensor, weight: Tensor = weight, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = (x @ weight - 1).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        made.append(train)
    captured, on_cpu = torch_xla.compile(made[0], capture=True), made[1]
    for seed, rows in enumerate([4] * 4 + [2] * 4):
        captured(numbers(rows, 4, seed=seed).to("xla"))
        on_cpu(numbers(rows, 4, seed=seed))
    torch_xla.export_step(captured, tmp_path / "step")
    step = torch_xla.load_step(tmp_path / "step")
    for seed, rows in enumerate([4, 2, 2, 4]):
        torch.testing.assert_close(step(numbers(rows, 4, seed=seed)).cpu(), on_cpu(numbers(rows, 4, seed=seed)), rtol=1e-4, atol=1e-5)


class Counter:
    """Has a method that is captured, for two kinds of arguments."""

    def __init__(self) -> None:
        self.total = torch.zeros(2, device="xla")

    @torch_xla.compile(capture=True)
    def add(self, x: Tensor, times: int = 1) -> Tensor:
        self.total += x.sum(0) * times
        return self.total.clone()


def test_every_kind_of_arguments_is_a_program_over_one_state(tmp_path: Path) -> None:
    counter, other = Counter(), Counter()
    for rows in (1, 3):
        for _ in range(3):
            counter.add(torch.ones(rows, 2, device="xla"))
            other.add(torch.ones(rows, 2, device="xla"), 5)
    torch_xla.export_step(counter.add, tmp_path / "step")
    step = torch_xla.load_step(tmp_path / "step")
    assert list(step.state_dict()["state"]) == ["Counter.total"]
    assert [step(torch.ones(rows, 2)).tolist() for rows in (1, 3)] == [[13, 13], [16, 16]]
    with pytest.raises(ValueError, match=re.escape("takes (float32[2, 2]); it takes (float32[1, 2]) or (float32[3, 2])")):
        step(torch.ones(2, 2))
    with pytest.raises(ValueError, match="takes"):
        step(torch.ones(1, 2), 5)


def test_numbers_that_lead_the_python_another_way_are_refused(tmp_path: Path) -> None:
    weight = torch.ones(4, device="xla").requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.5, weight_decay=0.1)

    def step() -> None:
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()

    captured = torch_xla.compile(step, capture=True)
    for _ in range(4):
        captured()
    torch_xla.export_step(captured, tmp_path / "step")
    loaded = torch_xla.load_step(tmp_path / "step")
    assert loaded() is None
    loaded.numbers["optimizer.param_groups.0.weight_decay"] = 0.0
    with pytest.raises(ValueError, match=r"optimizer\.param_groups\.0\.weight_decay is 0\.0"):
        loaded()
    for wrong in (float("nan"), "0.1", True):
        loaded.numbers["optimizer.param_groups.0.weight_decay"] = wrong
        with pytest.raises(ValueError, match="finite floats"):
            loaded()
    loaded.numbers["optimizer.param_groups.0.weight_decay"] = 0.2
    captured()
    optimizer.param_groups[0]["weight_decay"] = 0.2
    loaded(), captured()
    assert loaded.state_dict()["state"]["weight"].tolist() == weight.tolist()


def small(path: Path) -> Any:
    counter = torch.zeros(3, device="xla")

    def step(x: Tensor) -> Tensor:
        counter.add_(x)
        return counter * 2

    captured = torch_xla.compile(step, capture=True)
    for _ in range(3):
        captured(torch.ones(3, device="xla"))
    torch_xla.export_step(captured, path)
    return captured


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("step") / "step"
    small(path)
    return path


def test_a_state_of_another_step_is_refused_whole(file: Path) -> None:
    step = torch_xla.load_step(file)
    state = step.state_dict()
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"state": {}}, "counter: in one of the states"),
        ({"state": {"counter": torch.zeros(4)}}, re.escape("counter is float32[4], and float32[3]")),
        ({"state": {"counter": torch.zeros(3, dtype=torch.int64)}}, re.escape("int64[3]")),
        ({"numbers": {"lr": 1.0}}, "lr: the numbers"),
        ({"random_state": -1}, "random state"),
    ]
    for wrong, message in wrongs:
        with pytest.raises(ValueError, match=message):
            step.load_state_dict({**state, "state": {"counter": torch.ones(3)}, **wrong})
    with pytest.raises(ValueError, match="has the keys"):
        step.load_state_dict({})
    assert step.state_dict()["state"]["counter"].tolist() == [3, 3, 3]


def test_every_cut_and_every_flipped_byte_is_noticed(file: Path, tmp_path: Path) -> None:
    whole, damaged = file.read_bytes(), tmp_path / "damaged"
    for size in (*range(60), len(whole) // 2, len(whole) - 1):
        damaged.write_bytes(whole[:size])
        with pytest.raises(StepFileError, match=str(damaged)):
            torch_xla.load_step(damaged)
    start = 48 + int.from_bytes(whole[8:16], "little")
    for place in (*range(48), *range(48, start, 29), *range(start, len(whole), 7)):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StepFileError, match="is no exported step|damaged|cut off"):
            torch_xla.load_step(damaged)
    damaged.write_bytes(whole + b"more")
    with pytest.raises(StepFileError, match="damaged"):
        torch_xla.load_step(damaged)


def rewritten(whole: bytes, change: Callable[[Any], Any]) -> bytes:
    """A file whose description is another, with the right checksum."""
    end = 48 + int.from_bytes(whole[8:16], "little")
    text = json.dumps(change(json.loads(whole[48:end]))).encode()
    return whole[:8] + len(text).to_bytes(8, "little") + sha256(text).digest() + text + whole[end:]


def artifact_calling(target: str) -> bytes:
    text = f"""
      func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {{
        %0 = stablehlo.custom_call @{target}(%x) {{backend_config = {{index = 7 : ui64}}, api_version = 4 : i32}}
          : (tensor<3xf32>) -> tensor<3xf32>
        return %0 : tensor<3xf32>
      }}"""
    return bytes(dialect.serialize_portable_artifact_str(text, dialect.get_current_version()))


def with_program(whole: bytes, code: bytes) -> bytes:
    """A file with another program in the place of its only one, with the right checksums."""
    start = 48 + int.from_bytes(whole[8:16], "little")
    old = json.loads(whole[48:start])["programs"][0]["code"]
    content = whole[:start] + whole[start : start + old["offset"]] + code + whole[start + old["offset"] + old["size"] :]

    def changed(about: Any) -> Any:
        for state in about["state"].values():
            if state["value"]["offset"] > old["offset"]:
                state["value"]["offset"] += len(code) - old["size"]
        about["programs"][0]["code"] = {"offset": old["offset"], "size": len(code), "sha256": sha256(code).hexdigest()}
        return about

    return rewritten(content, changed)


def test_what_is_newer_foreign_or_calls_python_is_refused(file: Path, tmp_path: Path) -> None:
    path, whole = tmp_path / "other", file.read_bytes()
    cases: list[tuple[bytes, str]] = [
        (rewritten(whole, lambda about: {**about, "format_version": 3}), "version 3 of the format, this xla-core reads up to 2: upgrade"),
        (rewritten(whole, lambda about: {**about, "stablehlo": "99.0.0"}), "upgrade jax and jaxlib"),
        (rewritten(whole, lambda about: {**about, "state": {}}), "which is not there"),
        (b"PK\x03\x04" + bytes(100), "is no exported step"),
    ]
    for content, message in cases:
        path.write_bytes(content)
        with pytest.raises(StepFileError, match=message):
            torch_xla.load_step(path)
    path.write_bytes(with_program(whole, artifact_calling("xla_ffi_python_cpu_callback")))
    with pytest.raises(StepFileError, match=r"it calls Python \(xla_ffi_python_cpu_callback\)"):
        torch_xla.load_step(path)
    path.write_bytes(with_program(whole, b"module {}"))
    with pytest.raises(StepFileError, match="it is no artifact of StableHLO"):
        torch_xla.load_step(path)
    with pytest.raises((StepFileError, IsADirectoryError)):
        torch_xla.load_step(tmp_path)
    with pytest.raises(FileNotFoundError):
        torch_xla.load_step(tmp_path / "missing")
    path.write_bytes(rewritten(whole, lambda about: {**about, "programs": [{**about["programs"][0], "platforms": ["tpu"]}]}))
    with pytest.raises(ValueError, match="exported for tpu, and this device is of cpu"):
        torch_xla.load_step(path)


def with_rows(whole: bytes, rows: list[Any]) -> bytes:
    """A file whose program takes a condition on the last of further rows of its formulas, which count from 0."""

    def changed(about: Any) -> Any:
        formulas = about["programs"][0]["formulas"]
        first = len(formulas["table"])
        formulas["table"] += [[name, *(of if name == "constant" else [first + row for row in of])] for name, *of in rows]
        formulas["conditions"] = [[len(formulas["table"]) - 1, True]]
        return about

    return rewritten(whole, changed)


def test_formulas_and_draws_of_strangers_end(file: Path, tmp_path: Path) -> None:
    """Powers of powers, which no memory holds; rows that have the one before twice in their texts; draws without end."""
    path, whole = tmp_path / "endless", file.read_bytes()
    for rows, message in (
        ([["constant", 10], *[["pow", row, row] for row in range(20)]], "cannot be computed"),
        ([["constant", 3], ["constant", 10**9], ["pow", 0, 1]], "cannot be computed"),
        ([["constant", 1.0], *[["add", row, row] for row in range(300)]], "the step was exported where"),
    ):
        path.write_bytes(with_rows(whole, rows))
        with pytest.raises(ValueError, match=message) as raised:
            torch_xla.load_step(path)(torch.ones(3))
        assert len(str(raised.value)) < 1000
    path.write_bytes(with_rows(whole, [["constant", 1], ["constant", 10**9], ["pow", 0, 1], ["eq", 2, 0]]))
    assert torch_xla.load_step(path)(torch.ones(3)).tolist() == torch_xla.load_step(file)(torch.ones(3)).tolist()
    for key in ("draws", "steps"):
        path.write_bytes(rewritten(whole, lambda about, key=key: {**about, "programs": [{**about["programs"][0], key: 10**15}]}))
        with pytest.raises(StepFileError, match="of the random state, of 1048576 at most"):
            torch_xla.load_step(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.filterwarnings("ignore:.*strange.executable is not used")
@given(data=st.data())
def test_descriptions_of_strangers_load_or_are_refused(file: Path, data: st.DataObject) -> None:
    """Whatever stands in one place of the description: it is refused, or the step loads, and then runs or refuses the call."""

    def change(about: Any) -> Any:
        held, key = [about], 0
        while isinstance(held[key], (dict, list)) and held[key] and (held[key] is about or data.draw(st.booleans())):
            held = held[key]
            key = data.draw(st.sampled_from(sorted(held) if isinstance(held, dict) else range(len(held))))
        held[key] = data.draw(JSON)
        return about

    path = file.with_name("strange")
    path.write_bytes(rewritten(file.read_bytes(), change))
    with suppress(StepFileError, ValueError, RuntimeError):  # and nothing else
        torch_xla.load_step(path)(torch.ones(3))


def test_what_cannot_be_exported_says_why(tmp_path: Path) -> None:
    path = tmp_path / "step"
    with pytest.raises(TypeError, match="export_step takes what torch_xla.compile"):
        torch_xla.export_step(lambda x: x, path)

    @torch_xla.compile(capture=True)
    def double(x: Any, more: Any = None) -> Tensor:
        return x * 2

    with pytest.raises(CaptureError, match="double is not captured yet: call it"):
        torch_xla.export_step(double, path)
    whole = numbers(6, 2).to("xla")
    for _ in range(3):
        double(whole[2:])
    with pytest.raises(CaptureError, match=re.escape("argument 0 was a view of shape [4, 2] of data of shape [6, 2]")):
        torch_xla.export_step(double, path)

    @torch_xla.compile(capture=True)
    def given_a_model(x: Tensor, model: nn.Module) -> Tensor:
        return model(x).detach()

    model = nn.Linear(2, 2).to("xla")
    for _ in range(3):
        given_a_model(whole, model)
    with pytest.raises(CaptureError, match="argument 1 is a Linear: give tensors and numbers"):
        torch_xla.export_step(given_a_model, path)

    @torch_xla.compile(capture=True)
    def largest(x: Tensor) -> Any:
        return torch.topk(x, 1)

    for _ in range(3):
        largest(whole)
    with pytest.raises(CaptureError, match="what it returns is nested in a way that files do not have: a topk; take tuples"):
        torch_xla.export_step(largest, path)
    assert not path.exists()


def test_a_method_that_returns_its_object_is_refused(tmp_path: Path) -> None:
    class Counted:
        @torch_xla.compile(capture=True)
        def add(self, x: Tensor) -> Any:
            return self, x + 1

    counted, x = Counted(), torch.ones(2, device="xla")
    for _ in range(3):
        assert counted.add(x)[0] is counted
    with pytest.raises(CaptureError, match="it returns the object whose method it is"):
        torch_xla.export_step(counted.add, tmp_path / "step")


def test_what_was_not_captured_is_refused_with_the_line(tmp_path: Path) -> None:
    @torch_xla.compile(capture=True, fallback=True)
    def reads(x: Tensor) -> Tensor:
        return x * x.sum().item()

    with pytest.warns(RuntimeWarning, match="reads cannot be captured"):
        for _ in range(4):
            reads(torch.ones(2, device="xla"))
    with pytest.raises(CaptureError, match=r"it reads a value \(at .*test_steps\.py:\d+\): move print"):
        torch_xla.export_step(reads, tmp_path / "step")


def test_a_step_that_is_no_longer_what_was_captured_is_refused(tmp_path: Path) -> None:
    train, _, model = trainer("xla")
    captured = torch_xla.compile(train, capture=True)
    x = numbers(6, 4).to("xla")
    for _ in range(4):
        captured(x)
    model.eval()
    with pytest.raises(CaptureError, match=r"cannot be exported: model.* is another one than when it was captured"):
        torch_xla.export_step(captured, tmp_path / "step")


def test_the_memory_of_old_state_is_taken_over(file: Path) -> None:
    step = torch_xla.load_step(file)
    before = step.state_dict()["state"]["counter"]
    for _ in range(3):
        old = step._state["counter"]
        step(torch.ones(3))
        assert old.is_deleted()
    assert before.tolist() == [3, 3, 3]  # a copy, which stays


def test_steps_over_a_mesh_are_refused(tmp_path: Path, run: Callable[..., str]) -> None:
    code = f"""
import torch, torch_xla, torch_xla.runtime as xr
xr.use_spmd()
@torch_xla.compile(capture=True)
def double(x):
    return x * 2
for _ in range(3):
    double(torch.ones(8, device="xla"))
try:
    torch_xla.export_step(double, {str(tmp_path / "step")!r})
except RuntimeError as error:
    print(error)
"""
    assert "is captured for several devices or replicas" in run(code, XLA_FLAGS="--xla_force_host_platform_device_count=4")

"""Programs for devices that are not there: here for this machine's CPU as if it took no data, which needs no other compiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
from xla_core.abi.events import CompileEvent, ExecuteEvent, subscribe
from xla_core.base.errors import DeviceMismatchError, UnknownDeviceError, UnsupportedOperationError
from xla_core.engine.placement.target import Target
from xla_core.engine.runtime import transfer
from xla_core.testing import planned_cpu


@pytest.fixture
def planned() -> Iterator[Target]:
    """This process's CPU as a target that takes no data."""
    torch_xla.sync()
    with planned_cpu() as target:
        yield target
    transfer._warn_of_stand_ins.cache_clear()


def training() -> Callable[[torch.Tensor], torch.Tensor]:
    """A step of a small model, which returns its loss."""
    model = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Dropout(0.1), nn.Linear(5, 2)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def batch() -> torch.Tensor:
    return torch.randn(4, 6).to("xla")


def events_of(kind: type[Any], work: Callable[[], object]) -> list[Any]:
    """The events of one kind while `work` runs."""
    seen: list[Any] = []
    stop = subscribe(seen.append, kind)
    try:
        work()
    finally:
        stop()
    return seen


def test_a_training_compiles_and_runs_nothing(planned: Target) -> None:
    step = training()

    def run() -> None:
        step(batch())
        torch_xla.sync()

    compiled = [len(events_of(CompileEvent, run)) for _ in range(4)]
    assert compiled[0] == 1 and compiled[2:] == [0, 0], "the first step makes the optimizer's state"
    loss = step(batch())
    with pytest.warns(RuntimeWarning, match=r"nothing runs on the target planned-cpu.*test_targets.py:\d+"):
        assert torch.isnan(loss.cpu())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        assert loss.item() != loss.item()


def test_captured_steps_launch_nothing_either(planned: Target) -> None:
    step = torch_xla.compile(training(), capture=True)
    for _ in range(5):
        step(batch())
    x, losses = batch(), []
    executed = events_of(ExecuteEvent, lambda: losses.append(step(x)))
    assert len(executed) == 1 and losses[0].shape == ()


@pytest.mark.filterwarnings("ignore:nothing runs on the target")
@pytest.mark.parametrize(
    ("dtype", "read"),
    [(torch.float32, "nan"), (torch.bfloat16, "nan"), (torch.float8_e4m3fn, "nan"), (torch.complex64, "nan"), (torch.int64, "0"),
     (torch.uint8, "0"), (torch.bool, "False")],
)  # fmt: skip
def test_values_read_have_shape_and_dtype(planned: Target, dtype: torch.dtype, read: str) -> None:
    tensor = torch.ones(3, 2).to("xla").to(dtype)
    host = tensor.cpu()
    assert (
        host.dtype is dtype
        and host.shape == (3, 2)
        and read in str(host.to(torch.complex64) if dtype.is_complex else host.float() if dtype.is_floating_point else host[0, 0])
    )
    host.fill_(1)  # memory of its own


def test_a_loop_that_counts_on_the_device_ends(planned: Target) -> None:
    """As `generate` does: tokens that nobody knows, in a tensor that grows, until it is as long as it may be."""
    tokens, done = torch.tensor([[5, 7], [6, 4]]).to("xla"), torch.zeros(2, dtype=torch.bool, device="xla")
    with pytest.warns(RuntimeWarning, match="nothing runs on the target"):
        while not done.all():
            chosen = torch.randn(2, 9).to("xla").argmax(-1)
            tokens = torch.cat([tokens, chosen[:, None]], 1)
            full = torch.full_like(done, tokens.shape[1] == 6)
            done |= full | torch.isin(chosen, torch.tensor([1, 2], device="xla"))
            torch_xla.sync()
    assert tokens.tolist() == [[5, 7, 0, 0, 0, 0], [6, 4, 0, 0, 0, 0]]


def test_what_only_known_integers_are_made_of_is_read_without_a_warning(planned: Target) -> None:
    counts, norm = torch.tensor([2, 5, 3]).to("xla"), nn.BatchNorm1d(6).to("xla")
    for _ in range(3):
        counts[1:] += 2 * counts[:-1]
        norm(batch())
        torch_xla.sync()
    ends = counts.cumsum(0) // 3
    expected = torch.tensor([2, 5, 3])
    for _ in range(3):
        expected[1:] += 2 * expected[:-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(counts.cpu(), expected) and int(ends.max()) == int(expected.sum()) // 3
        assert ends.dtype is torch.int64 and norm.num_batches_tracked.item() == 3
    with pytest.warns(RuntimeWarning, match="nothing runs on the target"):
        assert (batch().argmax(-1) + counts[0]).tolist() == [2, 2, 2, 2]


def test_integers_of_captured_steps_are_computed_anew_at_each_call(planned: Target) -> None:
    position = torch.zeros(1, dtype=torch.int64).to("xla")

    @torch_xla.compile(capture=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        position.add_(2)
        return x * position

    for _ in range(6):
        step(batch())
    assert position.item() == 12


def test_many_integers_are_not_computed(planned: Target) -> None:
    many = torch.ones(1 << 14, dtype=torch.int64).to("xla") + 1
    with pytest.warns(RuntimeWarning, match="nothing runs on the target"):
        assert not many.any(), "each is 0"


def test_a_model_on_meta_moves_without_memory(planned: Target) -> None:
    with torch.device("meta"):
        model = nn.Linear(1 << 20, 1 << 16)  # 256 GiB
    model.to("xla")
    assert model.weight.device.type == "xla" and model.weight.shape == (1 << 16, 1 << 20)
    torch.ones(1 << 14, 1 << 20, device="xla")
    small = nn.Linear(3, 2, device="meta").to_empty(device="xla")
    small.load_state_dict(nn.Linear(3, 2).state_dict())
    assert small(torch.ones(1, 3).to("xla")).shape == (1, 2)


@pytest.mark.parametrize("shaped", [torch.nonzero, torch.unique, lambda x: x[x > 0], torch.bincount])
def test_a_shape_that_depends_on_data_is_an_error(planned: Target, shaped: Callable[[torch.Tensor], Any]) -> None:
    x = torch.ones(4, dtype=torch.int64).to("xla")
    with pytest.raises(
        UnsupportedOperationError, match=r"depends on data, and nothing runs on the target planned-cpu: at .*test_targets.py"
    ):
        shaped(x)


def test_tensors_of_both_worlds_do_not_mix() -> None:
    here = torch.ones(3).to("xla") + 1
    with planned_cpu():
        there = torch.ones(3).to("xla")
        with pytest.raises(DeviceMismatchError):
            here + there
        assert here.tolist() == [2.0] * 3, "it is still there"
    assert (here + 1).tolist() == [3.0] * 3 and xm.xla_device_hw("xla:0") == "CPU"
    assert there.shape == (3,)


def test_unknown_names_list_those_that_there_are() -> None:
    with pytest.raises(UnknownDeviceError, match="v4, v5e, v5p, v6e, tpu7x.*a100, h100, h200, b200"), torch_xla.target("v9:2x2"):
        pass


def test_the_variable_is_for_the_whole_process(interpreter: Callable[..., str]) -> None:
    code = "import torch, torch_xla\nprint(torch.ones(2).to('xla') + 1)"
    assert "there is no target 'none'" in interpreter(code, stderr=True, code_wanted=1, XLA_TARGET="none")


def test_a_block_leaves_the_default_device_of_its_thread(run: Callable[..., str]) -> None:
    run(
        """
        import torch, torch_xla
        from xla_core.testing import planned_cpu

        torch.accelerator.set_device_index(1)
        with planned_cpu():
            assert torch.ones(1).to("xla").device.index == 0
        assert torch.ones(1).to("xla").device.index == 1
        """,
        CPU_NUM_DEVICES="2",
    )

"""Several devices in one process: transfers, backward on each, a thread for each."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from xla_core.engine.runtime import placing

Run = Callable[..., str]


def test_four_devices_in_one_process(run: Run) -> None:
    out = run(
        """
        import threading
        import torch, torch_xla
        from xla_core import abi

        assert [str(d) for d in torch_xla.devices()] == [f"xla:{i}" for i in range(4)]
        # transfers copy, in both directions of the device order, views included
        a = torch.arange(6.0).reshape(2, 3).to("xla:1")
        b = a.t().to("xla:3")
        a.add_(1)
        assert b.device == torch.device("xla:3") and b.tolist() == [[0, 3], [1, 4], [2, 5]]
        assert (b.to("xla:0") + 1).cpu().sum() == 21
        # two devices do not mix
        try:
            a + b.t()
        except RuntimeError as error:
            assert "xla:1" in str(error) and "xla:3" in str(error)
        else:
            raise AssertionError("two devices mixed")
        # backward on each, by both entry points
        for device in torch_xla.devices():
            w = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
            (w * w).sum().backward()
            assert w.grad.device == device and w.grad.tolist() == [2.0, 4.0]
            (grad,) = torch.autograd.grad((w * 3).sum(), [w])
            assert grad.tolist() == [3.0, 3.0]

        # a thread for each device trains on its own
        results = {}

        def train(index):
            torch_xla.device(index)
            device = torch.device("xla", index)
            torch.manual_seed(0)
            w = torch.full((3,), float(index), device=device, requires_grad=True)
            optimizer = torch.optim.SGD([w], lr=0.1)
            for _ in range(20):
                optimizer.zero_grad()
                (w * w).sum().backward()
                optimizer.step()
                abi.tensors.sync(device)
            results[index] = w.detach().cpu()

        threads = [threading.Thread(target=train, args=(index,)) for index in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        for index in range(4):
            torch.testing.assert_close(results[index], torch.full((3,), index * 0.8**20))
        print("done")
        """,
        CPU_NUM_DEVICES="4",
    )
    assert out.strip() == "done"


def test_each_device_has_its_own_pending_work(run: Run) -> None:
    out = run(
        """
        import torch, torch_xla
        from xla_core import abi
        from xla_core.engine.runtime.client import client
        x, y = torch.ones(2, device="xla:0") + 1, torch.ones(2, device="xla:1") + 2
        abi.tensors.sync("xla:0")
        first, second = (len(recorder.pending_graph.entries) for recorder in client().recorders)
        assert first == 0 and second > 0, (first, second)
        print(x.tolist(), y.tolist())
        """,
        CPU_NUM_DEVICES="2",
    )
    assert out.strip() == "[2.0, 2.0] [3.0, 3.0]"


@pytest.mark.parametrize(
    ("files", "wheels", "kind", "unused"),
    [
        ([], [], "CPU", None),
        ([], ["libtpu"], "CPU", None),
        (["nvidia0", "nvidiactl"], [], "CPU", r"NVIDIA GPU: pip install 'xla-core\[cuda\]' and set PJRT_DEVICE=CUDA"),
        (["accel0"], [], "CPU", r"TPU: pip install 'xla-core\[tpu\]'"),
        (["vfio/0"], ["libtpu"], "TPU", None),
        (["vfio/0"], [], "CPU", None),  # many other devices are passed through so
    ],
)
def test_the_default_kind_and_what_it_leaves_unused(
    files: list[str], wheels: list[str], kind: str, unused: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in wheels else None)
    chosen, left = placing.default_kind(tmp_path)
    assert chosen == kind
    assert left is None if unused is None else left is not None and re.search(unused, left)

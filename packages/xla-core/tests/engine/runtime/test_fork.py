"""Processes that are forked after devices were used: their first use of one raises and says what to do; all else works."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., str]

PARENT = """
import os, warnings
import torch, torch_xla
warnings.simplefilter("ignore")  # jax warns of every fork

x = torch.arange(3.0, device="xla")
pending = x + 1
torch_xla.sync(wait=True)
pending = x * 2
child = os.fork()
if not child:
    try:
        {use}
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(7)
    os._exit(0)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), pending.tolist(), (x + 1).tolist())
"""


@pytest.mark.parametrize(
    "use",
    [
        "torch.ones(2, device='xla')",
        "torch.ones(2).to('xla')",
        "x + 1",
        "x.add_(1)",
        "x.cpu()",
        "pending.cpu()",
        "pending.sum().item()",
        "torch.empty(2, device='xla').fill_(1)",
        "torch_xla.sync(wait=True); torch_xla.device(); print(x)",
    ],
)
def test_the_first_use_in_a_child_raises(run: Run, use: str) -> None:
    said, outcome = run(PARENT.format(use=use)).splitlines()
    assert "forked from one that uses xla devices" in said and "spawn or forkserver" in said
    assert outcome == "7 [0.0, 2.0, 4.0] [1.0, 2.0, 3.0]", "the parent goes on"


def test_a_child_that_uses_no_device_is_fine(run: Run) -> None:
    out = run(PARENT.format(use="assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]"))
    assert out.split()[0] == "0"


def test_a_child_ends_as_it_says_and_leaves_all_to_its_parent(run: Run) -> None:
    """While the device computes: threads of jax wait for it, and are not there in the child."""
    out = run(
        """
        import os, sys, warnings
        import torch, torch_xla
        warnings.simplefilter("ignore")  # jax warns of every fork

        def ended(work):
            child = os.fork()
            if not child:
                work()
                sys.exit()
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        def raises():
            raise KeyError("of the child")

        x = torch.ones(500, 500, device="xla")
        for _ in range(20):
            x = x @ x / 500
        torch_xla.sync()
        pending = x + 1
        codes = [ended(work) for work in (lambda: sys.exit(7), lambda: None, raises, lambda: sys.exit(ended(lambda: sys.exit(5))))]
        print(codes, pending.sum().item())
        """
    )
    assert out.splitlines()[-1] == "[7, 0, 1, 5] 500000.0"


def test_workers_of_a_loader_may_be_forked(run: Run) -> None:
    out = run(
        """
        import warnings
        import torch, torch_xla
        from torch.utils.data import DataLoader, TensorDataset
        warnings.simplefilter("ignore")
        total = torch.zeros((), device="xla")
        total.add_(1).cpu()
        for (batch,) in DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=2, multiprocessing_context="fork"):
            total += batch.to("xla").sum()
        print(total.item())
        """
    )
    assert out.strip() == "29.0"


def test_a_child_of_a_process_without_a_client_starts_its_own(run: Run) -> None:
    out = run(
        """
        import os
        import torch, torch_xla
        assert torch_xla.device_count() == 1
        child = os.fork()
        if not child:
            os._exit(int(torch.ones(3, device="xla").sum().item()))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert out.strip() == "3"

"""A process ends with code 0, nothing on stderr and no hang, whatever is pending."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., str]

ENDINGS = {
    "pending_work": """
        import torch, torch_xla
        x = torch.ones(300, 300, device="xla")
        for _ in range(20):
            x = x @ x / 300
    """,
    "running_work": """
        import torch, torch_xla
        x = torch.ones(1500, 1500, device="xla")
        for _ in range(30):
            x = x @ x / 1500
        torch_xla.sync()
    """,
    "background_closures": """
        import torch, torch_xla
        import torch_xla.core.xla_model as xm
        x = torch.ones(3, device="xla")
        for _ in range(5):
            x = x + 1
            xm.add_step_closure(lambda t: t.sum().item(), args=(x,), run_async=True)
            torch_xla.sync()
    """,
    "nothing_used": "import torch_xla",
    "backward_pending": """
        import torch, torch_xla
        w = torch.nn.Linear(4, 2).to("xla")
        w(torch.ones(3, 4, device="xla")).sum().backward()
    """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_process_ends_quietly(run: Run, ending: str) -> None:
    assert run(ENDINGS[ending], stderr=True) == ""


def test_after_an_exception_only_its_traceback_is_shown(run: Run) -> None:
    text = run(
        """
        import torch, torch_xla
        x = torch.ones(3, device="xla") + 1
        raise KeyError("of the user")
        """,
        stderr=True,
        code_wanted=1,
    )
    assert text.rstrip().endswith("KeyError: 'of the user'")
    assert text.count("Traceback") == 1

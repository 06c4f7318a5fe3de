"""A process ends with its own exit status, nothing on stderr and no hang, whatever is pending and whoever still computes."""

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
def test_the_process_ends_quietly(interpreter: Run, ending: str) -> None:
    assert interpreter(ENDINGS[ending], stderr=True) == ""


def test_after_an_exception_only_its_traceback_is_shown(interpreter: Run) -> None:
    text = interpreter(
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


THREADS = """
    import sys, threading
    import torch, torch_xla

    def record(x, turn):
        for _ in range(50):
            x = x + 1

    def read(x, turn):
        (x + turn).sum().item()

    def sync(x, turn):
        y = x * 2
        torch_xla.sync()

    def compile(x, turn):
        (torch.ones(turn, device="xla") * 2).sum().item()

    def autograd(x, turn):
        w = torch.ones(16, 4, device="xla", requires_grad=True)
        (x @ w).sum().backward()
        if turn % 5 == 0:
            torch_xla.sync()

    def upload(x, turn):
        torch.ones(500, 500).to("xla").cpu()

    def stubborn(x, turn):
        try:
            x.sum().item()
        except BaseException:
            pass

    def work(kind):
        x, turn = torch.ones(4, 16, device="xla"), 0
        while True:
            turn += 1
            kind(x, turn)
            if turn == 3:
                ready.wait()

    kinds = [{kinds}] * {times}
    ready = threading.Barrier(len(kinds) + 1)
    for kind in kinds:
        threading.Thread(target=work, args=(kind,), daemon=True).start()
    ready.wait()
    threading.Event().wait({delay})
    {ending}
"""
STATUS = {"pass": 0, "raise KeyError('of the user')": 1, "sys.exit(3)": 3}


@pytest.mark.parametrize("ending", [pytest.param(ending, marks=[] if ending == "pass" else pytest.mark.long) for ending in STATUS])
def test_daemon_threads_that_compute_do_not_change_the_exit_status(interpreter: Run, ending: str) -> None:
    kinds = "record, read, sync, compile, autograd, upload, stubborn"
    text = interpreter(THREADS.format(kinds=kinds, times=1, delay=0, ending=ending), stderr=True, code_wanted=STATUS[ending])
    assert text == "" or (ending.startswith("raise") and text.rstrip().endswith("KeyError: 'of the user'"))


def test_a_daemon_thread_that_comes_to_the_device_while_torch_ends_stops_quietly(interpreter: Run) -> None:
    assert (
        interpreter(
            """
        import atexit, threading

        ending, arrived = threading.Event(), threading.Event()

        def last():  # registered first: what torch does at exit is done
            ending.set()
            assert arrived.wait(60)

        atexit.register(last)
        import torch, torch_xla

        def late():
            try:
                assert ending.wait(60)
                torch.ones(3).to("xla")
            finally:
                arrived.set()

        torch.ones(3).to("xla").cpu()
        threading.Thread(target=late, daemon=True).start()
        """,
            stderr=True,
        )
        == ""
    )


@pytest.mark.long
@pytest.mark.parametrize("ending", [pytest.param(ending, marks=[] if ending == "pass" else pytest.mark.long) for ending in STATUS])
@pytest.mark.parametrize("kind", ["record", "read", "sync", "compile", "autograd", "upload"])
def test_three_threads_of_a_kind_at_twenty_moments(interpreter: Run, kind: str, ending: str) -> None:
    for moment in range(20):
        program = THREADS.format(kinds=kind, times=3, delay=moment / 100, ending=ending)
        text = interpreter(program, stderr=True, code_wanted=STATUS[ending])
        assert text == "" or (ending.startswith("raise") and text.rstrip().endswith("KeyError: 'of the user'"))


def test_threads_that_wait_are_not_waited_for(interpreter: Run) -> None:
    """And go on: what they are asked for while the process ends is done."""
    out = interpreter(
        """
        import atexit, queue, threading
        asked, done = queue.Queue(), queue.Queue()
        atexit.register(lambda: (asked.put("last words"), print(done.get(timeout=60))))
        import torch, torch_xla

        def serve():
            while True:
                done.put(asked.get())

        threading.Thread(target=serve, daemon=True).start()
        torch.ones(2, device="xla").cpu()
        """
    )
    assert out.strip() == "last words"

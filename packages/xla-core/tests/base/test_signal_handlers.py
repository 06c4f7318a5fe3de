"""Signals whose handlers raise, at moments at which an exception would end the process."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

Run = Callable[..., str]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
def test_a_signal_while_torch_asks_the_device_guard_waits(run: Run, number: signal.Signals) -> None:
    """An exception of the handler would end the process there. The signal comes without any Python between it and the operation."""
    out = run(
        """
        import itertools, os, signal
        from _thread import interrupt_main
        import torch, torch_xla

        number = int(os.environ["NUMBER"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if number != signal.SIGINT:
            def stop(came, frame):
                raise KeyboardInterrupt(came)
            before = signal.signal(number, stop)
            assert before == signal.SIG_DFL and signal.getsignal(number) is stop
        weight, factor = torch.ones(4, device="xla", requires_grad=True), torch.ones(4, device="xla")
        (weight * factor).sum().backward()
        for operation, arguments in (
            (torch.mul, (weight, factor)),
            (torch.Tensor.detach_, (weight * factor,)),
            (torch.autograd.backward, ((weight * factor).sum(),)),
        ):
            try:
                [*itertools.chain(map(interrupt_main, (number,)), itertools.starmap(operation, [arguments]))]
                str()  # after a call, Python looks for signals
            except KeyboardInterrupt:
                print("caught")
        assert (weight.grad >= 1).all() and torch.equal((weight * 2).cpu(), torch.full((4,), 2.0))
        """,
        NUMBER=str(int(number)),
    )
    assert out.split() == ["caught"] * 3


def test_ctrl_c_at_any_moment_of_recording(run: Run) -> None:
    """A loop that does nothing but record a small step with gradients, which is where torch asks the device guard most often."""
    out = run(
        """
        import os, random, signal, threading
        import torch, torch_xla

        signal.signal(signal.SIGINT, signal.default_int_handler)  # also where whoever runs the tests ignores it
        weight, factor = torch.ones(4, device="xla", requires_grad=True), torch.ones(4, device="xla")
        (weight * factor).sum().backward()
        torch_xla.sync()
        caught = 0

        def shoot(delay):
            threading.Event().wait(delay)
            os.kill(os.getpid(), signal.SIGINT)

        for _ in range(200):
            gun = threading.Thread(target=shoot, args=(random.random() * 0.01,))
            try:
                gun.start()
                while True:
                    y = weight
                    for _ in range(30):
                        y = y * factor
                    del y
            except KeyboardInterrupt:
                caught += 1
            gun.join()
        print(caught)
        """
    )
    assert int(out) == 200


def test_the_standard_library_sees_the_handlers_of_the_program(run: Run) -> None:
    out = run(
        """
        import asyncio, os, signal

        def hello(number, frame):
            print("hello", number, frame.f_code.co_name)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGUSR1, hello)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        import torch_xla

        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGUSR1) is hello
        assert signal.signal(signal.SIGUSR2, hello) is signal.SIG_IGN
        assert signal.signal(signal.SIGUSR1, signal.SIG_DFL) is hello and signal.signal(signal.SIGUSR1, hello) is signal.SIG_DFL

        def main():
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                signal.raise_signal(number)

        main()
        try:
            signal.signal(signal.SIGINT, "no handler")
        except TypeError as error:
            print("refused")

        async def waits():
            try:
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                print("cancelled")
                raise

        try:
            asyncio.run(waits())
        except KeyboardInterrupt:
            print("Ctrl-C")
        """
    )
    assert out.split("\n") == [
        f"hello {int(signal.SIGUSR1)} main",
        f"hello {int(signal.SIGUSR2)} main",
        "refused",
        "cancelled",
        "Ctrl-C",
        "",
    ]

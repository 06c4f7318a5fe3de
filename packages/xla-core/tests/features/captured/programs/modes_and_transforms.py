"""Modes, contexts and transforms of the caller around a captured function, and of the step inside it; threads and their variables."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn
from torch.func import grad, jvp, vjp, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

CALLS = 20


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.sin(torch.arange(size, dtype=torch.float32) * 2 + call).to("xla")


@program
def operations_that_a_mode_counts(capture: Capture) -> Iterator[Any]:
    """A dispatch mode of the caller's counts operations in some calls."""

    class Counting(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += 1
            return func(*args, **(kwargs or {}))

    step = capture(lambda x: (x * 2).tanh() + 1)
    for call in range(CALLS):
        if call % 5 == 4:
            x = batch(call)
            with Counting() as mode:
                result = step(x)
            yield result, mode.count > 0
        else:
            yield step(batch(call))


@program
def operations_that_a_mode_changes(capture: Capture) -> Iterator[Any]:
    """In some calls a dispatch mode of the caller's turns sums into means."""

    class Means(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return torch.ops.aten.mean.default(*args) if func is torch.ops.aten.sum.default else func(*args, **(kwargs or {}))

    step = capture(lambda x: x.sum() * 2)
    for call in range(CALLS):
        if call % 5 == 4:
            with Means():
                result = step(batch(call))
            yield result
        else:
            yield step(batch(call))


@program
def operations_of_a_step_that_are_counted(capture: Capture) -> Iterator[Any]:
    """The caller counts the floating point operations of some calls."""
    torch.manual_seed(3)
    model = nn.Linear(3, 2).to("xla")
    step = capture(lambda x: model(x).sum().detach())
    for call in range(CALLS):
        if call in (6, 13):
            with FlopCounterMode(display=False) as counter:
                result = step(batch(call, 6).reshape(2, 3))
            yield result, counter.get_total_flops()
        else:
            yield step(batch(call, 6).reshape(2, 3))


@program
def a_factor_in_a_function_mode(capture: Capture) -> Iterator[Any]:
    """A function mode of the caller's multiplies what tanh gives by a number of its own, which changes."""

    class Scaled(TorchFunctionMode):
        factor = 2.0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            return result * self.factor if func is torch.tanh else result

    mode = Scaled()
    step = capture(lambda x: torch.tanh(x) + 1)
    for call in range(CALLS):
        if call == 10:
            mode.factor = -1.0
        if call % 4:
            with mode:
                result = step(batch(call))
            yield result
        else:
            yield step(batch(call))


@program
def directions_given_to_a_captured_function(capture: Capture) -> Iterator[Any]:
    """In some calls arguments are dual numbers of forward-mode differentiation; the caller reads the tangent of the result."""
    step = capture(lambda x: x.square() * 3)
    for call in range(CALLS):
        if call % 5 == 4:
            with forward_ad.dual_level():
                value, tangent = forward_ad.unpack_dual(step(forward_ad.make_dual(batch(call), batch(call + 1))))
                yield value, tangent
        else:
            yield step(batch(call))


@program(refused="vmap|transform|functorch|captured")
def a_captured_function_in_vmap(capture: Capture) -> Iterator[Any]:
    """In some calls the captured function is mapped over rows."""
    step = capture(lambda x: x * 2 + x.sum())
    for call in range(CALLS):
        yield vmap(step)(batch(call, 6).reshape(2, 3)) if call % 5 == 4 else step(batch(call))


@program(refused="grad|transform|functorch|captured")
def a_captured_function_in_grad(capture: Capture) -> Iterator[Any]:
    """The caller differentiates the captured function by torch.func."""
    step = capture(lambda x: (x * x).sum())
    for call in range(CALLS):
        yield grad(step)(batch(call)) if call % 5 == 4 else step(batch(call))


@program
def transforms_inside(capture: Capture) -> Iterator[Any]:
    """jvp, vjp, vmap over grad, and the Hessian inside of the step, over a factor that the caller changes."""
    shared = {"factor": 2.0}

    @capture
    def step(x: Tensor) -> Any:
        def function(x: Tensor) -> Tensor:
            return (x**3).sum() * shared["factor"]

        value, direction = jvp(function, (x,), (torch.ones_like(x),))
        _, pull = vjp(function, x)
        rows = torch.stack([x, x * 2])
        return value, direction, pull(torch.ones((), device="xla"))[0], vmap(grad(function))(rows), torch.func.hessian(function)(x)

    for call in range(CALLS):
        shared["factor"] = 2.0 if call < 9 else 0.5
        yield step(batch(call))


@program
def gradients_through_a_captured_part(capture: Capture) -> Iterator[Any]:
    """The captured part only makes targets without gradients; it is called inside of a checkpointed function of the caller's."""
    weight = batch(1).requires_grad_()

    @capture
    @torch.no_grad()
    def target(x: Tensor) -> Tensor:
        return x.tanh() * 2

    for call in range(CALLS):
        weight.grad = None
        checkpoint(lambda x: ((weight * x - target(x)) ** 2).sum(), batch(call), use_reentrant=False).backward()
        yield weight.grad


@program
def checkpoints_that_the_caller_switches(capture: Capture) -> Iterator[Any]:
    """Blocks are computed twice in calls 6 to 11, with dropout that must be the same both times."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.block, self.head, self.saving = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Tanh()), nn.Linear(8, 1), False

        def forward(self, x: Tensor) -> Tensor:
            hidden = checkpoint(self.block, x, use_reentrant=False) if self.saving else self.block(x)
            return self.head(hidden)

    net = Net().to("xla")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @capture
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(CALLS):
        net.saving = 6 <= call < 12
        yield step(batch(call, 6).reshape(2, 3))
    yield net.state_dict()


@program(unnoticed=True)
def the_precision_that_the_caller_asks_for(capture: Capture) -> Iterator[Any]:
    """set_float32_matmul_precision around some calls; the step asks for it."""
    step = capture(lambda x: x * 2 if torch.get_float32_matmul_precision() == "highest" else x - 1)
    before = torch.get_float32_matmul_precision()
    for call in range(CALLS):
        torch.set_float32_matmul_precision("highest" if call < 8 or call > 14 else "high")
        yield step(batch(call))
    torch.set_float32_matmul_precision(before)


@program(unnoticed=True)
def a_switch_that_torch_keeps(capture: Capture) -> Iterator[Any]:
    """The step asks torch whether warnings are always shown, which the caller changes: a stand-in for flags of torch's own."""
    step = capture(lambda x: x * 2 if torch.is_warn_always_enabled() else x - 1)
    before = torch.is_warn_always_enabled()
    for call in range(CALLS):
        torch.set_warn_always(8 <= call < 15)
        yield step(batch(call))
    torch.set_warn_always(before)


@program
def a_function_of_torch_that_is_patched(capture: Capture) -> Iterator[Any]:
    """At call 9 the caller replaces torch's gelu by a faster one of its own, and a method of a layer of torch's at call 15."""
    torch.manual_seed(3)
    layer = nn.Linear(3, 3).to("xla")
    step = capture(lambda x: F.gelu(layer(x)).detach())
    gelu, forward = F.gelu, nn.Linear.forward
    try:
        for call in range(CALLS):
            if call == 9:
                F.gelu = lambda x: x * torch.sigmoid(1.702 * x)
            if call == 15:
                nn.Linear.forward = lambda self, x: x @ self.weight.t()
            yield step(batch(call))
    finally:
        F.gelu, nn.Linear.forward = gelu, forward


@program
def a_context_variable_in_another_context(capture: Capture) -> Iterator[Any]:
    """Some calls run in a copy of the context, where a variable has another value."""
    scale: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=1.0)
    step = capture(lambda x: x * scale.get())

    def other(x: Tensor) -> Tensor:
        scale.set(5.0)
        return step(x)

    for call in range(CALLS):
        yield contextvars.copy_context().run(other, batch(call)) if call % 4 == 3 else step(batch(call))


@program
def tasks_of_an_event_loop(capture: Capture) -> Iterator[Any]:
    """Two tasks take turns with one captured step; each has a value of its own in a context variable."""
    scale: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=1.0)
    step = capture(lambda x: x * scale.get())

    async def task(value: float) -> list[Tensor]:
        scale.set(value)
        results = []
        for call in range(10):
            results.append(step(batch(call)))
            await asyncio.sleep(0)
        return results

    async def both() -> Any:
        return await asyncio.gather(task(2.0), task(-3.0))

    yield from asyncio.run(both())


@program
def a_value_of_the_thread(capture: Capture) -> Iterator[Any]:
    """A threading.local holds a factor, which the caller sets; another thread has another one."""
    local = threading.local()
    local.factor = 1.0
    step = capture(lambda x: x * local.factor)
    results: list[Tensor] = []

    def other() -> None:
        local.factor = 7.0
        results.append(step(batch(0)))

    for call in range(CALLS):
        local.factor = 1.0 if call < 8 else 4.0
        yield step(batch(call))
        if call in (5, 12):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
    yield results

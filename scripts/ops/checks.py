"""One entry of a database on the device and on the CPU: forward, gradient, error inputs, modules, optimizers."""

from __future__ import annotations

import copy
import itertools
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch.utils import _pytree as pytree

import compare
from compare import Difference
from entries import GRADIENTS, Suite, Task, database, dtypes_of


class Outcome(Enum):
    """How an entry fared, the worse the later."""

    NATIVE = "native"
    FALLBACK = "right with CPU fallback"
    ERROR = "error"
    WRONG = "wrong"
    TIMEOUT = "time-out"
    CRASH = "crash"


@dataclass(slots=True)
class Result:
    """The worst outcome over all samples. refused: samples that CPU torch itself cannot do, which are not asked of the device."""

    outcome: Outcome = Outcome.NATIVE
    samples: int = 0
    refused: int = 0
    detail: str = ""
    fallbacks: set[str] = field(default_factory=set)

    def fail(self, outcome: Outcome, detail: str) -> None:
        """Remember the first failure; a wrong result counts for more than an error."""
        if self.outcome in (Outcome.NATIVE, Outcome.FALLBACK) or (outcome is Outcome.WRONG and self.outcome is Outcome.ERROR):
            self.outcome, self.detail = outcome, detail[:300]

    def as_json(self) -> dict[str, Any]:
        """For the results file."""
        return {
            "outcome": self.outcome.value,
            "samples": self.samples,
            "refused": self.refused,
            "detail": self.detail,
            "fallbacks": sorted(self.fallbacks),
        }


@dataclass(frozen=True, slots=True)
class Settings:
    """device: `xla` or `cpu` (the script checks itself). damage: change every result, to see that it is noticed."""

    device: str
    samples: int
    damage: bool

    def sync(self) -> None:
        """Run what was recorded."""
        if self.device == "xla":
            import torch_xla

            torch_xla.sync(wait=True)


@contextmanager
def watching(result: Result, settings: Settings) -> Iterator[None]:
    """Note which operators run on the CPU."""
    if settings.device == "cpu":
        yield
        return
    from xla_core.abi.events import FallbackEvent, subscribe

    unsubscribe = subscribe(lambda event: result.fallbacks.add(event.operator), FallbackEvent)
    try:
        yield
    finally:
        unsubscribe()
    if result.fallbacks and result.outcome is Outcome.NATIVE:
        result.outcome = Outcome.FALLBACK


Action = Callable[[str], Any]
DOUBLE = "double"


def moved(tree: Any, device: str) -> Any:
    """Nested arguments with their tensors copied to a device; leaves stay leaves. `double`: on the CPU in double precision."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and device == DOUBLE:
            wide = torch.complex128 if leaf.is_complex() else torch.float64 if leaf.is_floating_point() else leaf.dtype
            return leaf.detach().clone().to(wide).requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad)
        # Samples name their device; no other argument of theirs is this text.
        return device if leaf in ("cpu", torch.device("cpu")) and device != DOUBLE else leaf

    return pytree.tree_map(move, tree)


def short(error: BaseException) -> str:
    """One line for an error, with the innermost place of ours."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "xla_core" in frame.filename]
    place = f" at {frames[-1].filename.rpartition('xla_core/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}{place}"


def arguments(entry: Any, sample: Any, device: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Input, positional and keyword arguments on a device."""
    given = moved((sample.input, sample.args, sample.kwargs), device)
    # Where to split must be known on the host: torch refuses such a tensor from any device.
    return (given[0], sample.args, sample.kwargs) if entry.name == "tensor_split" else given


def call(entry: Any, sample: Any, device: str) -> Any:
    """The entry's operation on one sample, moved to a device, from the same random state every time."""
    torch.manual_seed(7)
    given = arguments(entry, sample, device)
    result = entry.op(given[0], *given[1], **given[2])
    return compare.with_picked(entry.name, given, result) if entry.name in compare.INDEXED else result


@contextmanager
def other_seeds(by: int) -> Iterator[None]:
    """Every seed is another one; some entries of the database set theirs inside."""
    manual_seed = torch.manual_seed

    def seed(number: int) -> torch.Generator:
        return manual_seed(number + by)

    torch.manual_seed = seed
    try:
        yield
    finally:
        torch.manual_seed = manual_seed


def is_random(entry: Any, action: Action, expected: Any) -> bool:
    """Whether values depend on the seed, or on nothing at all."""
    if entry.name in compare.UNINITIALISED or entry.name in compare.RANDOM_INSIDE:
        return True
    for by in range(1, 4):  # one other seed may give the same by chance
        with other_seeds(by):
            try:
                compare.check(action("cpu"), expected, "cpu", True)
            except Difference:
                return True
    return False


def agree(actions: list[tuple[Action, bool]], name: str, settings: Settings, result: Result) -> None:
    """Do each action on the CPU and on the device and compare; True beside it: values count, not only shapes and dtypes.

    All are recorded first and run as one program, because compiling many small ones takes long; if that fails, one by one.
    """
    done: list[tuple[Any, Any, bool, Action]] = []
    alone = False
    for attempt in ("together", "alone"):
        done.clear()
        try:
            for action, values in actions:
                expected = action("cpu")
                try:
                    mine = action(settings.device)
                    if alone:
                        settings.sync()
                except Exception as error:
                    if not alone:
                        raise
                    result.fail(Outcome.ERROR, short(error))
                    continue
                done.append((mine, expected, values, action))
            settings.sync()
        except Exception as error:
            if attempt == "alone":
                result.fail(Outcome.ERROR, short(error))
                done.clear()
            alone = True
            continue
        break
    for mine, expected, values, action in done:
        result.samples += 1
        try:
            _compare(mine, expected, values, name, settings)
        except Difference as difference:
            if settings.damage or not _excused(mine, expected, action):
                result.fail(Outcome.WRONG, str(difference))
        except Exception as error:
            result.fail(Outcome.ERROR, short(error))


def _excused(mine: Any, expected: Any, action: Action) -> bool:
    """Whether it is the CPU that is far from the result in double precision."""
    try:
        return compare.no_worse(mine, expected, action(DOUBLE))
    except (RuntimeError, TypeError, ValueError):
        return False


def _compare(mine: Any, expected: Any, values: bool, name: str, settings: Settings) -> None:
    compare.check(mine, expected, settings.device, values and not settings.damage and name not in compare.UNIQUE)
    if settings.damage:
        mine = compare.damaged(mine)
    if values and (settings.damage or name in compare.UNIQUE):
        compare.check(compare.unique_part(name, mine), compare.unique_part(name, expected), "cpu", True)


def forward(entry: Any, dtype: torch.dtype, settings: Settings) -> Result:
    """All samples of one dtype."""
    result = Result()
    actions: list[tuple[Action, bool]] = []
    for sample in itertools.islice(entry.sample_inputs("cpu", dtype), settings.samples):

        def action(device: str, sample: Any = sample) -> Any:
            return call(entry, sample, device)

        try:
            actions.append((action, not is_random(entry, action, action("cpu"))))
        except Exception:
            result.refused += 1
    with watching(result, settings):
        agree(actions, entry.name, settings, result)
    return result


def gradient(entry: Any, dtype: torch.dtype, settings: Settings) -> Result:
    """First-order gradients of all samples of one dtype, for cotangents that are the same on both sides."""
    result = Result()
    actions: list[tuple[Action, bool]] = []
    for sample in itertools.islice(entry.sample_inputs("cpu", dtype, requires_grad=True), settings.samples):

        def action(device: str, sample: Any = sample) -> Any:
            return gradients_of(entry, sample, device)

        try:
            actions.append((action, not is_random(entry, action, action("cpu"))))
        except Exception:
            result.refused += 1
    with watching(result, settings):
        agree(actions, "", settings, result)
    return result


def gradients_of(entry: Any, sample: Any, device: str) -> list[torch.Tensor]:
    """Gradients of all inputs that want one; zeros where there is none."""
    torch.manual_seed(7)
    given = arguments(entry, sample, device)
    leaves = [leaf for leaf in compare.tensors_of(given) if leaf.requires_grad]
    out = entry.op(given[0], *given[1], **given[2])
    if sample.output_process_fn_grad is not None:
        out = sample.output_process_fn_grad(out)
    outs = [each for each in compare.tensors_of(out) if each.requires_grad]
    if not outs or not leaves:
        raise ValueError("nothing to differentiate")
    generator = torch.Generator().manual_seed(11)
    cotangents = [torch.randn(each.shape, generator=generator, dtype=each.dtype).to(each.device) for each in outs]
    found = torch.autograd.grad(outs, leaves, cotangents, allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, found, strict=True)]


def operator(entry: Any, settings: Settings) -> dict[str, Any]:
    """Forward and gradient for every dtype of an entry."""
    found: dict[str, Any] = {}
    for dtype in dtypes_of(entry):
        row = found[str(dtype).removeprefix("torch.")] = {"forward": forward(entry, dtype, settings).as_json()}
        if dtype in GRADIENTS and entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu"):
            row["gradient"] = gradient(entry, dtype, settings).as_json()
    return found


def errors(entry: Any, settings: Settings) -> dict[str, Any]:
    """Inputs that torch refuses must be refused with an error of the same type."""
    result = Result()
    if entry.error_inputs_func is None:
        return {}
    for wrong in entry.error_inputs("cpu"):
        sample = wrong.sample_input
        try:
            call(entry, sample, "cpu")
        except Exception as error:
            expected = error
        else:
            continue
        result.samples += 1
        try:
            out = call(entry, sample, settings.device)
            settings.sync()
        except Exception as error:
            if settings.damage or not isinstance(error, wrong.error_type):
                result.fail(Outcome.WRONG, f"{short(error)}; the CPU: {short(expected)}")
        else:
            del out
            result.fail(Outcome.WRONG, f"no error; the CPU: {short(expected)}")
    return {"any": {"forward": result.as_json()}} if result.samples else {}


def module(entry: Any, settings: Settings) -> dict[str, Any]:
    """Forward and backward of a module with all its documented arguments, in train and eval mode."""
    ways = {True: Result(), False: Result()}
    for training, result in ways.items():
        actions: list[tuple[Action, bool]] = []
        inputs = entry.module_inputs_func(entry, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
        for given in itertools.islice(inputs, settings.samples):
            if given.forward_input is None:
                continue
            torch.manual_seed(5)
            built = entry.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
            built.train(training)

            def action(device: str, seed: int = 7, built: Any = built, given: Any = given) -> Any:
                copied = copy.deepcopy(built)
                return passes(copied.double() if device == DOUBLE else copied.to(device), given.forward_input, device, seed)

            try:
                other_seed, expected = action("cpu", 8), action("cpu")
            except Exception:
                result.refused += 1
                continue
            try:
                compare.check(other_seed, expected, "cpu", True)
                actions.append((action, True))
            except Difference:
                actions.append((action, False))
        with watching(result, settings):
            agree(actions, "", settings, result)
    return {"train": {"forward": ways[True].as_json()}, "eval": {"forward": ways[False].as_json()}}


def passes(built: torch.nn.Module, given: Any, device: str, seed: int) -> Any:
    """Outputs, gradients of inputs and parameters, and buffers after one forward and backward pass."""
    torch.manual_seed(seed)
    args, kwargs = moved((given.args, given.kwargs), device)
    out = built(*args, **kwargs)
    outs = [each for each in compare.tensors_of(out) if each.requires_grad]
    generator = torch.Generator().manual_seed(11)
    leaves = [leaf for leaf in (*compare.tensors_of((args, kwargs)), *built.parameters()) if leaf.requires_grad]
    found: list[Any] = []
    if outs and leaves:
        cotangents = [torch.randn(each.shape, generator=generator, dtype=each.dtype).to(each.device) for each in outs]
        grads = torch.autograd.grad(outs, leaves, cotangents, allow_unused=True)
        found = [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, grads, strict=True)]
    return compare.tensors_of(out), found, list(built.buffers())


STEPS = 6


def optimizer(entry: Any, settings: Settings) -> dict[str, Any]:
    """Six steps with every documented setting: one parameter after the other, by lists, and capturable."""
    found: dict[str, Any] = {}
    ways: dict[str, dict[str, Any]] = {"for-loop": {"foreach": False}} if "foreach" in entry.supported_impls else {"for-loop": {}}
    if "foreach" in entry.supported_impls:
        ways["foreach"] = {"foreach": True}
    if entry.supports_fused_on and "cpu" in entry.supports_fused_on:
        ways["fused"] = {"fused": True}
    if entry.has_capturable_arg and settings.device != "cpu":  # torch refuses it on the CPU
        ways["capturable"] = {"capturable": True}
    for way, extra in ways.items():
        result = Result()
        with watching(result, settings):
            for given in entry.optim_inputs_func("cpu"):
                check_optimizer(entry, {**given.kwargs, **extra}, given.params, settings, result)
        found[way] = {"forward": result.as_json()}
    return found


def check_optimizer(entry: Any, kwargs: dict[str, Any], params: Any, settings: Settings, result: Result) -> None:
    """One setting; a step after the third must compile nothing."""
    on_cpu = {**kwargs, "capturable": False} if kwargs.get("capturable") else kwargs
    try:
        expected, _ = trained(entry, on_cpu, "cpu", settings)
    except Exception:
        result.refused += 1
        return
    try:
        result.samples += 1
        mine, late = trained(entry, kwargs, settings.device, settings)
        if settings.damage:
            mine = compare.damaged(mine)
        compare.check(mine, expected, "cpu" if settings.damage else settings.device, True)
        if late:
            raise Difference(f"{late} compiles after the third step")
    except Difference as difference:
        result.fail(Outcome.WRONG, f"{kwargs}: {difference}")
    except Exception as error:
        result.fail(Outcome.ERROR, f"{kwargs}: {short(error)}")


def compiles(settings: Settings) -> int:
    """Programs compiled so far."""
    if settings.device == "cpu":
        return 0
    from xla_core.abi.metrics import counter

    return counter("UncachedCompile")


def trained(entry: Any, kwargs: dict[str, Any], device: str, settings: Settings) -> tuple[list[torch.Tensor], int]:
    """Weights after some steps on a small regression, and how many programs were compiled after the third step."""
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(shape, generator=generator) for shape in ((3, 4), (3,), (8, 4), (8, 3))]
    weight, bias = (torch.nn.Parameter(each.to(device)) for each in made[:2])
    x, y = (each.to(device) for each in made[2:])
    options = {
        name: value.to(device) if isinstance(value, torch.Tensor) and kwargs.get("capturable") else value for name, value in kwargs.items()
    }
    options = {name: copy.deepcopy(value) for name, value in options.items()}
    chosen = [weight] if entry.optim_cls.__name__ == "Muon" else [weight, bias]
    stepper = entry.optim_cls(chosen, **options)

    def closure() -> torch.Tensor:
        stepper.zero_grad()
        loss = (torch.nn.functional.linear(x, weight, bias) - y).square().mean()
        loss.backward()
        return loss

    late = 0
    for step in range(STEPS):
        before = compiles(settings) if step >= 3 else 0
        if entry.step_requires_closure:
            stepper.step(closure)
        else:
            closure()
            stepper.step()
        settings.sync()
        late += compiles(settings) - before if step >= 3 else 0
    return [each.detach() for each in chosen], late


def run(task: Task, settings: Settings) -> dict[str, Any]:
    """The results of one task by dtype (or way) and pass."""
    entry = database(task.suite)[task.number]
    actions: dict[Suite, Callable[[Any, Settings], dict[str, Any]]] = {
        Suite.OPS: operator,
        Suite.ERRORS: errors,
        Suite.MODULES: module,
        Suite.OPTIMIZERS: optimizer,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return actions[task.suite](entry, settings)

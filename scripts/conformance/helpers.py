"""What PyTorch's tests of other versions import from `torch.testing._internal`, and the installed torch no longer has."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _mkldnn_modes(precision: float = 1e-2) -> Decorator:
    from torch.testing._internal.common_mkldnn import reduced_f32_on_and_off

    decorator: Decorator = reduced_f32_on_and_off(precision)
    return decorator


def _skip_operators(test_class: str, test: str, to_skip: Any) -> Decorator:
    """As later versions have it: they take class and test from the function."""
    from torch.testing._internal.common_device_type import skipOps

    decorator: Decorator = skipOps(to_skip)
    return decorator


def _of_device_type(name: str) -> Any:
    return getattr(importlib.import_module("torch.testing._internal.common_device_type"), name)


def _binary_operators() -> Any:
    return importlib.import_module("torch.testing._internal.common_methods_invocations").binary_ufuncs


def _module_tests() -> Any:
    return importlib.import_module("torch.testing._internal.common_nn").get_new_module_tests()


_SUPPLIED: dict[tuple[str, str], Callable[[], Any]] = {
    ("common_cuda", "tf32_is_not_fp32"): lambda: lambda: False,
    ("common_mkldnn", "bf32_on_and_off"): lambda: _mkldnn_modes,
    ("common_methods_invocations", "binary_ufuncs_and_refs"): _binary_operators,
    ("common_methods_invocations", "skip"): lambda: _of_device_type("skip"),
    ("common_methods_invocations", "skipOps"): lambda: _skip_operators,
    ("common_methods_invocations", "xfail"): lambda: _of_device_type("xfail"),
    ("common_nn", "new_module_tests"): _module_tests,
}
"""What makes a helper, by its module and name."""


def hide_marks_of_another_project() -> None:
    """Take back what torch's tests say about PyTorch/XLA, whose device has the same name: skipped tests run, expected failures fail."""
    module: Any = importlib.import_module("torch.testing._internal.common_device_type")
    module.skipXLA = module.expectedFailureXLA = lambda test: test


def ask_of_every_accelerator() -> None:
    """Make tests for this device, too, where a file names the CPU and CUDA as those that its authors had."""
    module: Any = importlib.import_module("torch.testing._internal.common_device_type")
    instantiate = module.instantiate_device_type_tests

    def instantiate_device_type_tests(cls: type, scope: dict[str, Any], *args: Any, only_for: Any = None, **others: Any) -> None:
        named = (only_for,) if isinstance(only_for, str) else only_for or ()
        instantiate(cls, scope, *args, only_for=None if "cuda" in named and "cpu" in named else only_for, **others)

    module.instantiate_device_type_tests = instantiate_device_type_tests


def drop_marks_of_absent_operators(folder: Path) -> list[str]:
    """Let tests in a folder mark operators that the installed torch has no samples of; returns these operators.

    functorch's tests mark operators through a module of their folder, which refuses names that it does not know.
    """
    if not (folder / "common_utils.py").is_file():
        return []
    module: Any = importlib.import_module("common_utils")
    operators = [*module.op_db, *module.additional_op_db, *module.autograd_function_db, *module.custom_op_db]
    known = {(operator.name, operator.variant_test_name) for operator in operators}
    absent: list[str] = []

    def without_absent(mark_operators: Callable[..., Decorator], named: Callable[[Any], tuple[str, str]]) -> Callable[..., Decorator]:
        def mark_known_operators(test_class: str, test: str, marks: Any) -> Decorator:
            absent.extend(sorted("samples of {}.{}".format(*named(mark)) for mark in marks if named(mark) not in known))
            return mark_operators(test_class, test, [mark for mark in marks if named(mark) in known])

        return mark_known_operators

    module.skipOps = without_absent(module.skipOps, lambda mark: (mark.op_name, mark.variant_name))
    module.opsToleranceOverride = without_absent(module.opsToleranceOverride, lambda mark: tuple(mark[:2]))
    return absent


def adapted(source: str) -> tuple[str, list[str]]:
    """The text of a test file as the installed torch takes it, and what was changed, there or in torch."""
    changed = []
    outdated = "super(self.__class__, self)"  # calls itself for ever since torch derives the class of a device from that of the file
    if outdated in source:
        changed.append(outdated)
    if "subtest_ctx in " in source and "skip_xfail_ctx" not in source:
        _give_one_context()
        changed.append("use_subtests=True with one context")
    return source.replace(outdated, "super()"), changed


def _give_one_context() -> None:
    """Samples with a context for each come in pairs, as they did before torch added a second context for marks of single samples."""
    operator: Any = importlib.import_module("torch.testing._internal.opinfo.core").OpInfo
    contexts = operator._maybe_skip_or_xfail
    operator._maybe_skip_or_xfail = lambda *args: contexts(*args)[:1]


def supply(source: str) -> list[str]:
    """Add the helpers that a test file names and the installed torch lacks; returns their names."""
    supplied = []
    for (module_name, name), make in _SUPPLIED.items():
        # One of these modules makes samples of all operators, which takes seconds: it is imported only for files that do so, too.
        if not (re.search(rf"\b{name}\b", source) and module_name in source):
            continue
        module = importlib.import_module(f"torch.testing._internal.{module_name}")
        if not hasattr(module, name):
            setattr(module, name, make())
            supplied.append(f"{module_name}.{name}")
    return supplied

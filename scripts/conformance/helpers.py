"""What PyTorch's tests of other versions import from `torch.testing._internal`, and the installed torch no longer has."""

from __future__ import annotations

import importlib
from collections.abc import Callable
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


def supply() -> list[str]:
    """Add the helpers that the installed torch lacks; returns their names."""
    supplied = []
    for (module_name, name), make in _SUPPLIED.items():
        module = importlib.import_module(f"torch.testing._internal.{module_name}")
        if not hasattr(module, name):
            setattr(module, name, make())
            supplied.append(f"{module_name}.{name}")
    return supplied

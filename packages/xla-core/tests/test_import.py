"""What `import torch_xla` does and does not do."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable

import pytest

import torch_xla

Run = Callable[..., str]


def test_version_is_the_api_level() -> None:
    assert re.fullmatch(r"2\.\d+\.\d+", torch_xla.__version__)
    assert tuple(map(int, torch_xla.__version__.split(".")))[:2] >= (2, 9)


SIDE_EFFECTS = """
    import logging, os, sys
    os.dup2(1, 2)
    import torch, jax, torch._dynamo
    environment, dynamo = dict(os.environ), torch._dynamo.config.get_config_copy()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    hooks, path_hooks = list(sys.meta_path), list(sys.path_hooks)
    x64, seed = jax.config.jax_enable_x64, torch.initial_seed()
    import torch_xla
    from xla_core.engine.runtime import client
    assert not client.started()
    assert dict(os.environ) == environment and torch._dynamo.config.get_config_copy() == dynamo
    assert root.handlers == handlers and root.level == level and not logging.getLogger("torch_xla").handlers
    # What waits for parts of torch's compiler to be imported finds nothing by itself.
    assert [hook for hook in sys.meta_path if not type(hook).__module__.startswith("xla_core.")] == hooks and sys.path_hooks == path_hooks
    assert jax.config.jax_enable_x64 == x64 and torch.initial_seed() == seed
    assert "torch_xla.core.xla_model" not in sys.modules
"""


def test_import_has_no_side_effects(run: Run) -> None:
    assert run(SIDE_EFFECTS, PJRT_DEVICE=None) == "", "nothing is printed, to stderr neither"


def test_submodules_are_reachable(run: Run) -> None:
    code = """
        import torch_xla.runtime
        import torch_xla
        print(torch_xla.runtime.world_size(), torch_xla.core.xla_model.REDUCE_SUM, torch_xla._XLAC.__name__)
        print(torch_xla.utils.__name__, torch_xla.experimental.eager_mode.__name__, torch_xla.backends.get_mat_mul_precision())
    """
    assert run(code).split() == ["1", "sum", "torch_xla._XLAC", "torch_xla.utils", "eager_mode", "highest"]


def test_device_type_is_cheap_and_tpu_is_absent(run: Run) -> None:
    code = """
        import torch_xla.runtime as xr
        from torch_xla._internal import tpu
        from xla_core.engine.runtime import client
        print(xr.device_type(), client.started(), tpu.num_available_devices(), tpu.get_tpu_env())
    """
    assert run(code, PJRT_DEVICE="CUDA_2").split() == ["CUDA", "False", "0", "{}"]


@pytest.mark.parametrize(
    "name",
    [
        "_XLAC",
        "_internal.tpu",
        "_internal.utils",
        "amp",
        "backends",
        "core.functions",
        "core.xla_model",
        "core.xla_op_registry",
        "experimental",
        "experimental.custom_kernel",
        "experimental.eager",
        "experimental.splash_attention",
        "runtime",
        "shapes",
        "stablehlo",
        "test.test_utils",
        "torch_xla",
        "utils.checkpoint",
        "utils.dlpack",
        "utils.keyd_queue",
        "utils.utils",
    ],
)
def test_public_names_resolve(name: str) -> None:
    module = importlib.import_module(f"torch_xla.{name}")
    assert module.__all__ and len(set(module.__all__)) == len(module.__all__)
    for public in module.__all__:
        assert getattr(module, public) is not None or public == "profiler"


def test_names_of_the_package_itself() -> None:
    for public in torch_xla.__all__:
        assert callable(getattr(torch_xla, public))


def test_the_old_home_of_the_package_has_the_same_functions() -> None:
    old = importlib.import_module("torch_xla.torch_xla")
    assert {name: getattr(old, name) for name in old.__all__} == {name: getattr(torch_xla, name) for name in old.__all__}


def test_an_unknown_name_is_an_attribute_error() -> None:
    for module in ("torch_xla", "torch_xla.core", "torch_xla.core.xla_model", "torch_xla._XLAC", "torch_xla.core.functions"):
        with pytest.raises(AttributeError, match="no_such_name"):
            _ = importlib.import_module(module).no_such_name


def test_import_leaves_kernels_alone(run: Run) -> None:
    """They and Pallas are slow to import; the functions that call them do it."""
    code = """
        import sys
        import torch_xla
        def slow():
            kernels = [name for name in sys.modules if name.startswith("xla_core.") and name.endswith("_kernel")]
            return kernels + [name for name in sys.modules if name.startswith("jax.experimental.pallas")]
        print(slow())
        from torch_xla.experimental import custom_kernel
        print(len(slow()) >= 4, "jax.experimental.pallas" in sys.modules)
    """
    assert run(code).split() == ["[]", "True", "False"]

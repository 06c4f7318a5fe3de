"""Targets by name. The compilers are large wheels (`hatch run targets:test` has them); what needs none of them is tested everywhere."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable

import pytest

from xla_core.base.accelerators import GPUS, TPUS
from xla_core.base.errors import UnknownDeviceError
from xla_core.engine.placement.topologies import standard_shape, target_named


def with_compiler(module: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a test that needs the compiler in a module."""
    skipped = pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"needs {module}: hatch run targets:test")
    return lambda test: pytest.mark.targets(skipped(test))


with_tpus, with_gpus = with_compiler("libtpu"), with_compiler("jax_cuda13_plugin")


@pytest.mark.parametrize(
    ("kind", "chips", "shape"),
    [("v5e", 1, (1, 1)), ("v5e", 8, (2, 4)), ("v6e", 16, (4, 4)), ("v5e", 256, (16, 16)), ("v4", 4, (2, 2, 1)), ("v4", 8, (2, 2, 2)),
     ("v5p", 32, (2, 4, 4)), ("tpu7x", 64, (4, 4, 4)), ("v4", 512, (8, 8, 8))],
)  # fmt: skip
def test_standard_shapes_are_those_that_clouds_offer(kind: str, chips: int, shape: tuple[int, ...]) -> None:
    assert standard_shape(kind, chips) == shape


@pytest.mark.parametrize(
    ("name", "text"),
    [("", "there is no target ''"), ("v9:2x2", "v4, v5e, v5p, v6e, tpu7x"), ("h100:2", "h100x2 to h100x8"), ("h100x9", "one to eight"),
     ("h100x0", "one to eight"), ("v5ex4", "such as v5e:2x2"), ("v5e:2x2x1", "has 2 dimensions, as in v5e:4x4"), ("v4:2x2", "3 dimensions"),
     ("v4-6", "TensorCores, two for each chip"), ("v5e-0", "powers of two"), ("v5e:0x2", "dimensions"), ("v5e:4x4 ; rm", "no target")],
)  # fmt: skip
def test_wrong_names_say_what_there_is(name: str, text: str) -> None:
    with pytest.raises(UnknownDeviceError, match=text):
        target_named(name)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed")
def test_a_missing_compiler_is_named_with_its_command() -> None:
    with pytest.raises(UnknownDeviceError, match=r"the compiler for v5e:2x2 is not installed: pip install 'xla-core\[targets\]'"):
        target_named("v5e:2x2")


@with_tpus
@pytest.mark.parametrize("kind", TPUS)
@pytest.mark.parametrize("chips", [1, 4, 16])
def test_every_generation_has_its_devices(kind: str, chips: int) -> None:
    shape = standard_shape(kind, chips)
    target = target_named(f"{kind}:{'x'.join(map(str, shape))}")
    assert len(target.devices) == math.prod(shape) * TPUS[kind].devices_per_chip
    assert target.platform == "tpu" and target.kind.startswith("TPU") and target.shape == shape and not target.attached
    cores = TPUS[kind].cores_per_chip or 1
    assert target_named(f"{kind}-{chips * cores}").shape == target.shape


@with_tpus
def test_a_shape_that_there_is_not_is_refused_by_the_compiler() -> None:
    with pytest.raises(UnknownDeviceError, match="the compiler for v5e:3x3 refuses it: .*not divisible"):
        target_named("v5e:3x3")


@with_gpus
@pytest.mark.parametrize("kind", GPUS)
@pytest.mark.parametrize("count", [1, 8])
def test_every_gpu_has_its_devices(kind: str, count: int) -> None:
    target = target_named(kind if count == 1 else f"{kind}x{count}")
    assert len(target.devices) == count and target.platform == "gpu" and target.kind == GPUS[kind].model
    assert target.memory_bytes == GPUS[kind].memory_bytes

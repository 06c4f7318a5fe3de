"""What is being lowered for, as jax and helpers of lowerings are told."""

from __future__ import annotations

import jax
import pytest
from jax.experimental.pallas import tpu as pallas_tpu

from xla_core.ops.compiled_for import compiled_for, is_cpu


def test_jax_lowers_kernels_for_the_model_that_is_named() -> None:
    with pytest.raises(ValueError, match="Unsupported TPU device kind: cpu"):
        pallas_tpu.get_tpu_info()
    for kind, lanes in (("TPU v5 lite", "v5e"), ("TPU v6 lite", "v6e")):
        with compiled_for("tpu", jax.sharding.AbstractDevice(kind, 1, "tpu")):
            assert str(pallas_tpu.get_tpu_info().chip_version) == lanes and not is_cpu()
    assert is_cpu()


def test_a_program_for_any_device_of_a_platform_says_nothing_to_jax() -> None:
    with compiled_for("tpu", None), pytest.raises(ValueError, match="Unsupported TPU device kind: cpu"):
        pallas_tpu.get_tpu_info()
    with compiled_for("gpu", jax.sharding.AbstractDevice("NVIDIA H100", None, "gpu")):
        assert jax.sharding.get_abstract_mesh().abstract_device is None and not is_cpu()


def test_inside_a_mapped_function_jax_has_the_devices_of_its_mesh() -> None:
    mesh = jax.make_mesh((1,), ("replica",), axis_types=(jax.sharding.AxisType.Auto,))

    def run(x: jax.Array) -> jax.Array:
        with compiled_for("tpu", jax.sharding.AbstractDevice("TPU v5 lite", 1, "tpu")):
            assert jax.sharding.get_abstract_mesh().axis_names == ("replica",)
            return jax.lax.psum(x, "replica")

    spec = jax.sharding.PartitionSpec()
    assert jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec))(jax.numpy.ones(2)).tolist() == [1, 1]

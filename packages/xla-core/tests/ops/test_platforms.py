"""Choosing how to compute by platform."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
from jax import lax

from xla_core.ops.platforms import with_32_bits


def test_what_is_lowered_with_32_bits_gives_the_same() -> None:
    a = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
    svd = partial(lax.linalg.svd, full_matrices=False)
    with jax.enable_x64(True):
        inside = jax.jit(lambda x: with_32_bits(svd, "cpu", x))(a)
        assert jax.config.jax_enable_x64  # type: ignore[attr-defined]
        for ours, theirs in zip(inside, jax.jit(svd)(a), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_its_counters_have_32_bits() -> None:
    def counted(x: jax.Array) -> jax.Array:
        total: jax.Array = lax.fori_loop(0, 3, lambda i, y: y + i, x)
        return total

    with jax.enable_x64(True):
        x = np.ones(3, np.float32)
        texts = [jax.jit(function).lower(x).as_text() for function in (counted, lambda x: with_32_bits(counted, "cpu", x))]
    assert "i64>" in texts[0].replace("dense", "") and "tensor<i64>" not in texts[1]

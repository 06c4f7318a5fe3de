"""A user's own JAX code in the same process behaves the same before, during and after (design: 32-bit defaults, no changed flags)."""

from __future__ import annotations

from collections.abc import Callable

Run = Callable[..., str]


def test_the_users_jax_does_not_notice(run: Run) -> None:
    out = run(
        """
        import jax, jax.numpy as jnp, numpy as np
        flags = dict(jax.config.values)
        traces = []

        @jax.jit
        def mine(x):
            traces.append(x.dtype)
            return x * 2

        def check():
            assert jnp.arange(3).dtype == jnp.int32
            assert jnp.asarray(np.ones(2)).dtype == jnp.float32
            assert mine(jnp.ones(3)).dtype == jnp.float32
            assert dict(jax.config.values) == flags

        check()
        import torch, torch_xla
        check()
        x = torch.arange(4, device="xla") * 3  # int64 on the device
        y = torch.ones(3, dtype=torch.float64, device="xla") / 3
        check()
        torch_xla.sync()
        check()
        assert x.tolist() == [0, 3, 6, 9] and y.dtype == torch.float64 and y[0].item() == 1 / 3
        with jax.enable_x64(True):
            assert jnp.arange(3).dtype == jnp.int64
            (x + 1).tolist()
        check()
        assert len(traces) == 1, "the user's program was traced again"
        print("same")
        """
    )
    assert out.strip() == "same"

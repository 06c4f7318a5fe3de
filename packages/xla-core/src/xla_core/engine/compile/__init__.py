"""From a graph to an executable: emission over jax.lax, jit with donation, caches in memory and on disk."""

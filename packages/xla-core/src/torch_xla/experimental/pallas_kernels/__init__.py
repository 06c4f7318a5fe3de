"""Kernels over jax arrays: those that JAX ships, and plain jax.numpy where it ships none."""

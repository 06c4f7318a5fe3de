"""Profiles by JAX's profiler, of this process and of others."""

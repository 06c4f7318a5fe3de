"""Take profiles of this process and of others with JAX's profiler, and read them."""

"""Forms of lowerings that only XLA:CPU needs."""

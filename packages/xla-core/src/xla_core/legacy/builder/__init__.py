"""Computations that users build operation by operation over `jax.lax`, and run on xla tensors."""

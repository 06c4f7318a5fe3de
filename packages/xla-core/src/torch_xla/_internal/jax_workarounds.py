"""JAX beside torch."""

from xla_core.legacy.jax_workarounds import jax_env_context, jax_import_guard, maybe_get_jax, maybe_get_torchax, requires_jax

__all__ = ["jax_env_context", "jax_import_guard", "maybe_get_jax", "maybe_get_torchax", "requires_jax"]

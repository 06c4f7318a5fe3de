"""Functions that go both ways between torch and JAX."""

"""Torch functions for JAX, and JAX's rematerialization for torch."""

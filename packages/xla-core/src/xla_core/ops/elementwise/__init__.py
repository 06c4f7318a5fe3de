"""Operators of each element by itself, and tensors made from numbers."""

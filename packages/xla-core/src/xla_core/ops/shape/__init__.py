"""Operators that make and rearrange elements."""

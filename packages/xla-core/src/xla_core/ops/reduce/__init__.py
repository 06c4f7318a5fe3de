"""Operators that reduce or accumulate."""

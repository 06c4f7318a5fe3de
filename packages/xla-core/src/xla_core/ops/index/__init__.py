"""Operators that pick elements by data."""

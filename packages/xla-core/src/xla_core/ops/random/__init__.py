"""Operators with random numbers."""

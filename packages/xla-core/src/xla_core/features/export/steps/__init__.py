"""Exports captured steps to files, and loads them."""

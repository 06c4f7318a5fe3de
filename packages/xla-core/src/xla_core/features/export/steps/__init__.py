"""Captured steps as files."""

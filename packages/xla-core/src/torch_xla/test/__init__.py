"""Helpers of example programs."""

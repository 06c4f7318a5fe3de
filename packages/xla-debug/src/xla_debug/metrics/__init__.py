"""Metrics reports: write counters and metrics of the runtime as text, save and compare them."""

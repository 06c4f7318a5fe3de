"""Metrics reports: counters and metrics of the runtime as text."""
